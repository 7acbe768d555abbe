"""The embedded pair's own tasks, from a corpus artifact."""

from __future__ import annotations

from dataclasses import dataclass
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

    Exact match is by the item's `rule` (`equals` the reference if it has none), ROUGE-1 against the reference beside
    it. No `tasks` means all of them.
    """

    corpus: Path
    split: Literal["test", "validation", "train"] = "test"
    tasks: tuple[str, ...] = ()

    name: ClassVar[str] = "the embedded pair's own tasks"
    metrics: ClassVar[tuple[Metric, ...]] = (ExactMatch(), Rouge1())
    measures_quality_of: ClassVar[QualityTarget] = "embedded"

    def prompts(self) -> list[Prompt]:
        """All items of the chosen tasks, in file order; ValueError for an unknown task or a broken line."""
        prompts = [_prompt(row) for row in records.json_lines(self.corpus / f"{self.split}.jsonl")]
        known = sorted({prompt.task for prompt in prompts})
        unknown = sorted(set(self.tasks) - set(known))
        if unknown:
            raise ValueError(
                f"workload.dataset.tasks: no such task: {', '.join(unknown)}; there are: {', '.join(known)}"
            )
        return [prompt for prompt in prompts if not self.tasks or prompt.task in self.tasks]


def _prompt(row: DataRecord) -> Prompt:
    rule: MatchRule = row.fields.get("rule", "equals")
    if rule not in get_args(MatchRule):
        raise row.error(f"rule is {rule!r}, needed is one of {', '.join(get_args(MatchRule))}")
    references = (row.text("reference").strip(),)
    return Prompt(row.text("id"), row.text("prompt"), references, row.text("task"), row.text("answer"), match_rule=rule)
