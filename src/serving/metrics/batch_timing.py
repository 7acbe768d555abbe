"""Times of the cloud's batches, against what the estimator expected."""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, ClassVar, Literal, NamedTuple

from serving.hardware.estimator import Estimator
from serving.messages import Command, Event, ForwardWork, Message, Outcome, Work
from serving.nodes.device import is_device


class BatchTiming(NamedTuple):
    """One forward pass of a cloud node; seconds of the run's clock."""

    node: str
    work: ForwardWork
    begin_s: float
    end_s: float


class BatchObserver:
    """An observer that keeps every batch of the cloud's nodes."""

    is_per_node: ClassVar[Literal[True]] = True

    def __init__(self) -> None:
        self.batches: list[BatchTiming] = []
        """Those of each node in the order of their times."""

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None: ...

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:  # noqa: ARG002
        if isinstance(work, ForwardWork) and not is_device(node):
            self.batches.append(BatchTiming(node, work, begin_s, end_s))

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None: ...


def batch_rows(batches: Sequence[BatchTiming], estimator: Callable[[str], Estimator]) -> list[dict[str, Any]]:
    """A row per batch: its content, its time and the expected time."""
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
    """R2, mean absolute percentage error and bias (expected minus measured) over batches (WISP, section 5.5); means of
    batch time and batch tokens, and the standard deviation of the time (HAT, Fig. 8).
    """
    batch_s = [row["end_s"] - row["begin_s"] for row in rows]
    errors = [row["expected_s"] - seconds for row, seconds in zip(rows, batch_s, strict=True)]
    known = [(error, seconds) for error, seconds in zip(errors, batch_s, strict=True) if seconds > 0]
    if not known:
        return {}
    mean_s = sum(batch_s) / len(batch_s)
    spread = sum((seconds - mean_s) ** 2 for seconds in batch_s)
    found = {
        "batches": float(len(rows)),
        "mape": sum(abs(error) / seconds for error, seconds in known) / len(known),
        "mae_s": sum(map(abs, errors)) / len(errors),
        "bias_s": sum(errors) / len(errors),
        "batch_s": mean_s,
        "batch_std_s": sqrt(spread / len(batch_s)),
        "batch_tokens": sum(row["num_tokens"] for row in rows) / len(rows),
    }
    return found | ({"r2": 1 - sum(error * error for error in errors) / spread} if spread else {})
