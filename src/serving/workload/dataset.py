"""The protocol of data sets, and the base class of public ones, which turns records into prompts."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from serving.workload import records
from serving.workload.metrics import Metric
from serving.workload.prompt import Prompt
from serving.workload.records import DataRecord, InvalidRecordError

QualityTarget = Literal["embedded", "pretrained", "none"]
Evaluation = Literal["open", "sealed"]
SEALED = Path(__file__).with_name("sealed.json")
"""Data set -> digests of the questions that no recipe, threshold or choice may see. A user's own file of the same
format has nothing sealed.
"""
_DIGEST_CHARS = 12
_UNNAMED_LISTS = {
    "CNN/DailyMail": "4a5c228fa920",
    "CommonsenseQA": "0904667dc80a",
    "GSM8K": "87b169e9231c",
    "HeySQuAD": "375429f711eb",
    "LLQA": "525cfeb29327",
    "SST-2": "6bc30b71c979",
    "SensorQA": "7faaee5bee46",
    "Spec-Bench": "2d80f4a51d1c",
    "XSum": "c9b2a48fec6b",
}
"""Data set -> digest of the list that artifacts were made with until identities named lists: with it they stay."""


class Dataset(Protocol):
    """Yields prompts. The first of `metrics`, if any, scores the answers; behind it stands none or `Rouge1`.

    `measures_quality_of` names the models whose quality the metrics measure: `embedded` (the pair trained on the
    project's corpus), `pretrained` (models that know English), or `none` (the data set is for speed and acceptance).
    """

    @property
    def name(self) -> str: ...
    @property
    def metrics(self) -> tuple[Metric, ...]: ...
    @property
    def measures_quality_of(self) -> QualityTarget: ...
    def prompts(self) -> list[Prompt]: ...


def quality_note(dataset: Dataset, embedded: bool) -> str | None:
    """A caveat that a report must add to its quality column; None if it needs none.

    Args:
        embedded: True if the served pair is the one that the project trains.
    """
    models = dataset.measures_quality_of
    if models == "none":
        return f"{dataset.name} has no quality metric: read acceptance, speed and cost only"
    if embedded and models == "pretrained":
        return (
            f"{dataset.name} with the embedded pair exercises loader, metric and lengths only: that pair was "
            "never trained on general English, so its score does not measure quality"
        )
    if not embedded and models == "embedded":
        return f"{dataset.name} asks about an invented world that only the embedded pair was trained on"
    return None


@dataclass(frozen=True)
class Example:
    """One record of a public data set; `worked_answer` is its answer as a worked example.

    `sealed_by` is the text whose digest the manifest has, where the question is more than it.
    """

    id: str
    question: str
    worked_answer: str
    references: tuple[str, ...]
    task: str
    answer: str = ""
    choices: tuple[str, ...] = ()
    sealed_by: str = ""


def _short_digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]


@cache
def _sealed_list(dataset: str) -> str:
    """The data set's digests as the manifest has them; empty where nothing is sealed."""
    return str(json.loads(SEALED.read_text(encoding="utf-8")).get(dataset, ""))


@cache
def _sealed_digests(dataset: str) -> frozenset[str]:
    return frozenset(_sealed_list(dataset).split())


@dataclass(frozen=True, kw_only=True)
class PublicDataset(ABC):
    """A public data set from `path`, a local file in its original format, or else from the Hub.

    `hub`, `config`, `split` and `revision` name the Hub's copy (None: the newest revision; pin one for reproducible
    results). The same `shots` worked examples precede each question: the first records of `shots_path`, or without it
    the first of the data set. What a worked example asks is no question, wherever else it is asked.
    """

    path: Path | None = None
    hub: str | None = None
    config: str | None = None
    split: str = "validation"
    revision: str | None = None
    shots: int = 0
    shots_path: Path | None = None
    evaluation: Evaluation = "open"
    """The half of the questions that is asked; worked examples are of the open one."""

    name: ClassVar[str]
    file_format: ClassVar[str]
    """Describes the file, for error messages."""
    instruction: ClassVar[str] = ""
    metrics: ClassVar[tuple[Metric, ...]]
    measures_quality_of: ClassVar[QualityTarget] = "pretrained"
    columns: ClassVar[tuple[str, ...]] = ()
    stop: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.shots < 0:
            raise ValueError(f"workload.dataset.shots of {self.name} must be 0 or more, got {self.shots}")

    @classmethod
    def data_revision(cls) -> str | None:
        """The digest of the sealed questions' list, which stands in identities (`pipeline.config.build`); None for the
        list of `_UNNAMED_LISTS`, and where nothing is sealed.
        """
        name = str(getattr(cls, "name", ""))
        found = _short_digest(_sealed_list(name))
        return None if found == _UNNAMED_LISTS.get(name, _short_digest("")) else found

    def records(self, path: Path) -> Iterable[DataRecord]:
        """Yields the records of a file in this data set's format; by default JSON Lines."""
        return records.json_lines(path)

    def check_source(self) -> None:
        """Raises ValueError if there is neither a file nor what the Hub's copy needs. Reads and fetches nothing."""
        if self.path is not None:
            return
        if self.hub is None:
            raise ValueError(self._needs_file())
        if find_spec("datasets") is None:
            raise ValueError(
                f"{self.name} has no file, and its copy on the Hugging Face Hub, {self.hub}, needs the package "
                f"`datasets` and a network. {self._needs_file()}, or pip install 'tandem-llm[hub]'"
            )

    def _needs_file(self) -> str:
        return f"{self.name} needs a file: set workload.path=FILE ({self.file_format})"

    @abstractmethod
    def example(self, row: DataRecord) -> Example | None:
        """Converts a record of a file or of the Hub; None skips it. Raises InvalidRecordError."""

    def prompts(self) -> list[Prompt]:
        """All questions that no worked example asks, in file order.

        Raises ValueError that names file and line of an invalid record, or the option to set.
        """
        questions, sealed = self._halves(self.path)
        if self.shots_path is None:
            worked, questions = questions[: self.shots], questions[self.shots :]
        else:
            records.check_file(self.shots_path, "workload.dataset.shots_path")
            worked = self._halves(self.shots_path)[0][: self.shots]
        shown = {each.question for each in worked}
        asked = [each for each in (sealed if self.evaluation == "sealed" else questions) if each.question not in shown]
        if len(worked) < self.shots or not asked:
            raise ValueError(
                f"{self.name}: {len(worked) + len(asked)} records are too few for {self.shots} worked examples and a "
                f"question of the {self.evaluation} half; set workload.dataset.shots lower, or "
                "workload.dataset.shots_path to another file"
            )
        return self._prompts(worked, asked)

    def _halves(self, path: Path | None) -> tuple[list[Example], list[Example]]:
        """The open examples, all that the manifest does not list, and the sealed ones, in the file's order."""
        sealed = _sealed_digests(self.name)
        halves: tuple[list[Example], list[Example]] = [], []
        for example in self._examples(path):
            halves[_short_digest(example.sealed_by or example.question) in sealed].append(example)
        return halves

    def _examples(self, path: Path | None) -> list[Example]:
        try:
            return [example for row in self._load_records(path) if (example := self.example(row))]
        except InvalidRecordError as error:
            raise ValueError(f"{error}. {self.name} needs {self.file_format}") from error

    def _load_records(self, path: Path | None) -> Iterable[DataRecord]:
        if path is not None:
            return self.records(path)
        if self.hub is None:
            raise ValueError(self._needs_file())
        return records.hub_records(self.hub, self.config, self.split, self.revision, self.columns)

    def _prompts(self, worked_examples: list[Example], questions: list[Example]) -> list[Prompt]:
        head = "\n\n".join(
            [self.instruction] * bool(self.instruction)
            + [f"{each.question} {each.worked_answer}" for each in worked_examples]
        )
        prompts: dict[str, Prompt] = {}
        for each in questions:
            if each.id in prompts:
                raise ValueError(f"{self.name}: two records of {self.path or self.hub} have the id {each.id!r}")
            prompts[each.id] = Prompt(
                each.id,
                f"{head}\n\n{each.question}" if head else each.question,
                each.references,
                each.task,
                each.answer,
                each.choices,
                shots=len(worked_examples),
                stop=self.stop,
            )
        return list(prompts.values())
