"""Counts how often the sealed prompts of a data set were served: each use makes them less fit to judge by.

OUTPUTS/sealed_uses.txt has a line `DATA_SET ARTIFACT` for each `serve` artifact that was made of sealed prompts.
"""

from pathlib import Path

from pipeline.report.context import JobContext

LEDGER = "sealed_uses.txt"


def describe_use(artifact: Path, context: JobContext) -> str | None:
    """`the sealed half of gsm8k; 3 runs have used it (FILE)`, with this run counted; None without sealed prompts."""
    if context.config_value("workload.dataset.evaluation") != "sealed":
        return None
    name, ledger = _dataset(context), artifact.parents[2] / LEDGER
    used = _noted(ledger)
    if (name, artifact.name) not in used:
        with ledger.open("a", encoding="utf-8") as file:  # short lines are appended whole by several processes
            file.write(f"{name} {artifact.name}\n")
        used.add((name, artifact.name))
    times = sum(dataset == name for dataset, _ in used)
    return f"the sealed half of {name}; {times} run{' has' if times == 1 else 's have'} used it ({ledger})"


def _dataset(context: JobContext) -> str:
    """The module of the data set: `gsm8k` of `serving.workload.datasets.gsm8k.GSM8K`."""
    return str(context.config_value("workload.dataset._target_")).split(".")[-2]


def _noted(ledger: Path) -> set[tuple[str, str]]:
    lines = ledger.read_text(encoding="utf-8").splitlines() if ledger.exists() else []
    return {(words[0], words[1]) for line in lines if len(words := line.split()) == 2}
