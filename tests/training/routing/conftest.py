"""A workload that toy routers learn from, without references: the large model's answers count as correct."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from serving.engines.models import Checkpoint
from serving.workload.datasets.tiny import TinyTasks
from serving.workload.metrics import ExactMatch, Metric
from serving.workload.prompt import Prompt
from serving.workload.workload import Workload


@dataclass(frozen=True)
class Unanswered:
    """The toy tasks' prompts alone."""

    corpus: Path
    name: ClassVar[str] = "prompts without references"
    metrics: ClassVar[tuple[Metric, ...]] = (ExactMatch(),)
    measures_quality_of: ClassVar[str] = "embedded"

    def prompts(self) -> list[Prompt]:
        found = TinyTasks(corpus=self.corpus, split="train").prompts()
        return [replace(prompt, references=(), answer="the", match_rule="contains") for prompt in found]


@pytest.fixture(scope="session")
def checkpoints_(toy_pair: tuple[Path, Path]) -> dict[str, Checkpoint]:
    large, small = toy_pair
    return {"device": Checkpoint(path=small), "cloud": Checkpoint(path=large)}


@pytest.fixture(scope="session")
def workload(toy_corpus: Path) -> Workload:
    return Workload(dataset=Unanswered(toy_corpus), num_prompts=48, max_prompt_tokens=192, max_new_tokens=8)


@pytest.fixture(scope="session")
def answered(toy_corpus: Path) -> Workload:
    """With references."""
    tasks = TinyTasks(corpus=toy_corpus, split="validation")
    return Workload(dataset=tasks, num_prompts=6, max_prompt_tokens=192, max_new_tokens=8)
