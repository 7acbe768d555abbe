"""What every data set is, and how the public ones turn the records of a file into prompts with worked examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from serving.workload import records
from serving.workload.metrics import Metric
from serving.workload.prompt import Prompt
from serving.workload.records import DataRecord, InvalidRecordError

QualityTarget = Literal["embedded", "pretrained", "nobody"]


class Dataset(Protocol):
    """Anything that yields prompts; the first of `metrics` is the headline figure, and there may be none.

    `measures_quality_of` says whose answers the metrics judge: `embedded` (the pair trained on the project's own
    corpus), `pretrained` (models that know English), or `nobody` (the data set is for speed and acceptance only).
    """

    @property
    def name(self) -> str: ...
    @property
    def metrics(self) -> tuple[Metric, ...]: ...
    @property
    def measures_quality_of(self) -> QualityTarget: ...
    def prompts(self) -> list[Prompt]: ...


def quality_note(dataset: Dataset, embedded: bool) -> str | None:
    """What a report must say about its quality column; None when the column means what it seems to mean.

    `embedded` tells whether the served pair is the one that the project trains (`model=tiny`).
    """
    audience = dataset.measures_quality_of
    if audience == "nobody":
        return f"{dataset.name} has no quality metric: read acceptance, speed and cost only"
    if embedded and audience == "pretrained":
        return (
            f"{dataset.name} with the embedded pair exercises loader, metric and lengths: that pair has never read "
            "English at large, so its score says nothing about quality"
        )
    if not embedded and audience == "embedded":
        return f"{dataset.name} asks about an invented world that only the embedded pair was trained on"
    return None


@dataclass(frozen=True)
class Example:
    """One record of a public data set: `question` ends where the model begins, `worked_answer` is how a worked example
    answers.
    """

    id: str
    question: str
    worked_answer: str
    references: tuple[str, ...]
    task: str
    answer: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PublicDataset(ABC):
    """A public data set from `path`, a local file in its original format, or else from the Hub.

    `hub`, `config`, `split` and `revision` name the Hub's copy (no revision: whatever is newest; pin one for a
    result that others shall repeat). `shots` worked examples stand before each question, always the same ones:
    the first of `shots_path`, or without one the first of the data themselves, which are then not asked.
    """

    path: Path | None = None
    hub: str | None = None
    config: str | None = None
    split: str = "validation"
    revision: str | None = None
    shots: int = 0
    shots_path: Path | None = None

    name: ClassVar[str]
    file_format: ClassVar[str]
    """What the file looks like, for error messages."""
    instruction: ClassVar[str] = ""
    metrics: ClassVar[tuple[Metric, ...]]
    measures_quality_of: ClassVar[QualityTarget] = "pretrained"
    columns: ClassVar[tuple[str, ...]] = ()
    stop: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.shots < 0:
            raise ValueError(f"workload.dataset.shots of {self.name} must be 0 or more, got {self.shots}")

    @abstractmethod
    def records(self, path: Path) -> Iterable[DataRecord]:
        """The records of a file in this data set's format."""

    @abstractmethod
    def example(self, row: DataRecord) -> Example | None:
        """One record, of a file or of the Hub; None to pass it over; raises BrokenRowError."""

    def prompts(self) -> list[Prompt]:
        """Every question that is not used as a worked example, in file order.

        Raises ValueError naming the file and the line of a record that cannot be used, or the option to set.
        """
        asked = self._examples(self.path)
        if self.shots_path is None:
            shown, asked = asked[: self.shots], asked[self.shots :]
        else:
            shown = self._examples(self.shots_path)[: self.shots]
        if len(shown) < self.shots or not asked:
            raise ValueError(
                f"{self.name}: {len(shown) + len(asked)} records are too few for {self.shots} worked examples and a "
                "question; set workload.dataset.shots lower, or workload.dataset.shots_path to another file"
            )
        return self._prompts(shown, asked)

    def _examples(self, path: Path | None) -> list[Example]:
        try:
            return [one for row in self._load_records(path) if (one := self.example(row))]
        except InvalidRecordError as error:
            raise ValueError(f"{error}. {self.name} needs {self.file_format}") from error

    def _load_records(self, path: Path | None) -> Iterable[DataRecord]:
        if path is not None:
            return self.records(path)
        if self.hub is None:
            raise ValueError(f"{self.name} is read from a file: set workload.path=FILE ({self.file_format})")
        return records.hub_records(self.hub, self.config, self.split, self.revision, self.columns)

    def _prompts(self, worked_examples: list[Example], questions: list[Example]) -> list[Prompt]:
        head = "\n\n".join(
            [self.instruction] * bool(self.instruction)
            + [f"{one.question} {one.worked_answer}" for one in worked_examples]
        )
        found: dict[str, Prompt] = {}
        for one in questions:
            if one.id in found:
                raise ValueError(f"{self.name}: two records of {self.path or self.hub} have the id {one.id!r}")
            text = f"{head}\n\n{one.question}" if head else one.question
            found[one.id] = Prompt(
                one.id,
                text,
                one.references,
                one.task,
                one.answer,
                one.choices,
                shots=len(worked_examples),
                stop=self.stop,
            )
        return list(found.values())
