"""Counts how often the sealed prompts of a data set were used: each use makes them less fit to judge by.

OUTPUTS/sealed_uses.txt has a line `DATA_SET ARTIFACT` for each artifact that was made from sealed prompts, served or
recorded.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.artifacts.stage import Stage
from pipeline.report.context import JobContext

LEDGER = "sealed_uses.txt"


def note_build(stage: Stage, artifact: Path) -> None:
    """Counts the artifact of a stage that reads sealed prompts."""
    for target in sorted(set(_sealed_datasets(stage.args))):
        _note(_module(target), artifact)


def describe_use(artifact: Path, context: JobContext) -> str | None:
    """`the sealed half of gsm8k; 3 artifacts of these outputs were made from it (sealed_uses.txt)`, with this one
    counted; None without sealed prompts.
    """
    if context.config_value("workload.dataset.evaluation") != "sealed":
        return None
    name = _module(str(context.config_value("workload.dataset._target_")))
    times = sum(dataset == name for dataset, _ in _note(name, artifact))
    made = f"{times} artifact of these outputs was" if times == 1 else f"{times} artifacts of these outputs were"
    return f"the sealed half of {name}; {made} made from it ({LEDGER})"


def _note(dataset: str, artifact: Path) -> set[tuple[str, str]]:
    """All that is noted, with this use."""
    ledger, use = artifact.parents[2] / LEDGER, (dataset, artifact.name)
    used = _noted(ledger)
    if use not in used:
        # Short lines are appended whole by several processes; outputs that are only read count nothing.
        with suppress(OSError), ledger.open("a", encoding="utf-8") as file:
            file.write(f"{dataset} {artifact.name}\n")
    return used | {use}


def _sealed_datasets(node: Any) -> Iterator[str]:
    """The targets of the data sets in a stage's args whose sealed half is asked."""
    if isinstance(node, Mapping):
        if node.get("evaluation") == "sealed":
            yield str(node["_target_"])
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from _sealed_datasets(each)


def _module(target: str) -> str:
    """The module of a data set: `gsm8k` of `serving.workload.datasets.gsm8k.GSM8K`."""
    return target.split(".")[-2]


def _noted(ledger: Path) -> set[tuple[str, str]]:
    lines = ledger.read_text(encoding="utf-8").splitlines() if ledger.exists() else []
    return {(words[0], words[1]) for line in lines if len(words := line.split()) == 2}
