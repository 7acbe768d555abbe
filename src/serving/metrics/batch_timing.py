"""Batches of the cloud as they were expected and as they ran: is the estimator to be relied on while it serves?"""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, NamedTuple

from serving.hardware.estimator import Estimator
from serving.messages import Command, Event, ForwardWork, Message, Outcome, Work


class BatchTiming(NamedTuple):
    """One forward of a node of the cloud; seconds of the run's clock."""

    node: str
    work: ForwardWork
    begin_s: float
    end_s: float


class BatchObserver:
    """An observer that keeps every batch."""

    def __init__(self) -> None:
        self.batches: list[BatchTiming] = []

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None: ...

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:  # noqa: ARG002
        if isinstance(work, ForwardWork) and not node.startswith("device-"):
            self.batches.append(BatchTiming(node, work, begin_s, end_s))

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None: ...


def batch_rows(batches: Sequence[BatchTiming], estimator: Callable[[str], Estimator]) -> list[dict[str, Any]]:
    """One a batch: what was in it, how long it took, and how long it was expected to take."""
    estimators = {node: estimator(node) for node in {batch.node for batch in batches}}
    return [
        {
            "node": batch.node,
            "begin_s": batch.begin_s,
            "end_s": batch.end_s,
            "requests": len(batch.work.slices),
            "num_tokens": sum(seq.num_tokens for seq in batch.work.slices),
            "cached_tokens": sum(seq.start for seq in batch.work.slices),
            "expected_s": estimators[batch.node].batch_s(batch.work),
        }
        for batch in batches
    ]


def estimator_errors(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """R2, mean absolute percentage error and bias (expected minus measured) over batches (WISP, section 5.5); how long
    they took and how many rows they had, on average, and the deviation of the time (HAT, Fig. 8).
    """
    took = [row["end_s"] - row["begin_s"] for row in rows]
    off = [row["expected_s"] - took_s for row, took_s in zip(rows, took, strict=True)]
    known = [(o, t) for o, t in zip(off, took, strict=True) if t > 0]
    if not known:
        return {}
    mean_s = sum(took) / len(took)
    spread = sum((t - mean_s) ** 2 for t in took)
    found = {
        "batches": float(len(rows)),
        "mape": sum(abs(o) / t for o, t in known) / len(known),
        "mae_s": sum(map(abs, off)) / len(off),
        "bias_s": sum(off) / len(off),
        "batch_s": mean_s,
        "batch_std_s": sqrt(spread / len(took)),
        "batch_tokens": sum(row["num_tokens"] for row in rows) / len(rows),
    }
    return found | ({"r2": 1 - sum(o * o for o in off) / spread} if spread else {})
