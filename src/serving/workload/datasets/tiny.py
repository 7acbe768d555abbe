"""The embedded pair's own tasks, from a corpus artifact."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, get_args

from serving.workload import records
from serving.workload.dataset import QualityTarget
from serving.workload.metrics import ExactMatch, Metric, Rouge1
from serving.workload.prompt import MatchRule, Prompt
from serving.workload.records import DataRecord


@dataclass(frozen=True, kw_only=True)
class TinyTasks:
    """Items {id, task, prompt, reference, answer} of one split of the corpus stage's artifact, a folder.

    Metrics: exact match by the item's `match_rule` (default: equals the reference), and ROUGE-1. Empty `tasks`: all.
    """

    corpus: Path
    split: Literal["test", "validation", "train"] = "test"
    tasks: tuple[str, ...] = ()

    name: ClassVar[str] = "the embedded pair's own tasks"
    metrics: ClassVar[tuple[Metric, ...]] = (ExactMatch(), Rouge1())
    measures_quality_of: ClassVar[QualityTarget] = "embedded"

    @property
    def is_built(self) -> bool:
        """True if the corpus stage has written the split."""
        return self._file.is_file()

    @property
    def _file(self) -> Path:
        return Path(self.corpus, f"{self.split}.jsonl")

    def prompts(self) -> list[Prompt]:
        """Items of the chosen tasks, in file order. Raises ValueError for an unknown task or a malformed line."""
        prompts = _read_prompts(self._file, records.file_stamp(self._file))
        known = sorted({prompt.task for prompt in prompts})
        unknown = sorted(set(self.tasks) - set(known))
        if unknown:
            raise ValueError(f"workload.dataset.tasks: unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        return [prompt for prompt in prompts if not self.tasks or prompt.task in self.tasks]


@lru_cache(maxsize=8)
def _read_prompts(file: Path, stamp: object) -> tuple[Prompt, ...]:  # noqa: ARG001
    """A split's items, read again only if the file changed: the plan of a sweep asks twice for each job."""
    return tuple(_prompt(row) for row in records.json_lines(file))


def _prompt(row: DataRecord) -> Prompt:
    rule: MatchRule = row.fields.get("match_rule", "equals")
    if rule not in get_args(MatchRule):
        raise row.error(f"match_rule is {rule!r}, needed is one of {', '.join(get_args(MatchRule))}")
    references = (row.text("reference").strip(),)
    return Prompt(row.text("id"), row.text("prompt"), references, row.text("task"), row.text("answer"), match_rule=rule)
