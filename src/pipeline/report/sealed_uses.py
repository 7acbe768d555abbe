"""Counts how often the sealed prompts of a data set were served: each use makes them less fit to judge by.

OUTPUTS/sealed_uses.txt has a line `DATA_SET ARTIFACT` for each reported `serve` artifact of sealed prompts.
"""

from contextlib import suppress
from pathlib import Path

from pipeline.report.context import JobContext

LEDGER = "sealed_uses.txt"


def describe_use(artifact: Path, context: JobContext) -> str | None:
    """`the sealed half of gsm8k; 3 runs of these outputs have used it (sealed_uses.txt)`, with this one counted; None
    without sealed prompts.
    """
    if context.config_value("workload.dataset.evaluation") != "sealed":
        return None
    name, ledger = _dataset(context), artifact.parents[2] / LEDGER
    used = _noted(ledger)
    if (name, artifact.name) not in used:
        # Short lines are appended whole by several processes; outputs that are only read count nothing.
        with suppress(OSError), ledger.open("a", encoding="utf-8") as file:
            file.write(f"{name} {artifact.name}\n")
        used.add((name, artifact.name))
    times = sum(dataset == name for dataset, _ in used)
    runs = f"{times} run of these outputs has" if times == 1 else f"{times} runs of these outputs have"
    return f"the sealed half of {name}; {runs} used it ({LEDGER})"


def _dataset(context: JobContext) -> str:
    """The module of the data set: `gsm8k` of `serving.workload.datasets.gsm8k.GSM8K`."""
    return str(context.config_value("workload.dataset._target_")).split(".")[-2]


def _noted(ledger: Path) -> set[tuple[str, str]]:
    lines = ledger.read_text(encoding="utf-8").splitlines() if ledger.exists() else []
    return {(words[0], words[1]) for line in lines if len(words := line.split()) == 2}
