"""Requests with deadlines, and a chip of 50 ms a batch and 10 ms a row, for tests of schedulers."""

from serving.core.kv_accounting import KVAccounting, MemoryBudget
from serving.core.queued_request import QueuedRequest
from serving.hardware.estimator import Estimator
from serving.hardware.latency import LayerScale, LinearLatency
from serving.messages import INF, Request, SequenceSlice, Span
from serving.policy.slots.scheduler import Scheduler

SPAN = Span(0, 8, embedding=True, lm_head=True)
FREE = MemoryBudget(KVAccounting(INF, keep_caches=True), ())
TENTH = Estimator(LinearLatency(0.010, 0.0, 0.0, 0.050, 8, "a test"), LayerScale(8, 8))
"""50 ms a batch and 10 ms a row: an item of five rows adds 50 ms."""


def item(
    name: str, slack_s: float, rows: int = 5, arrived: float = 0.0, value: float = 3.0, cached: int = 0
) -> QueuedRequest:
    asked = SequenceSlice(name, cached, rows, tuple(range(rows)), min(4, rows - 1), "greedy")
    return QueuedRequest(Request(0, asked, (), 0, (), "device", 1, slack_s, value), asked, SPAN, arrived, rows)


def picked(by: Scheduler, *items: QueuedRequest, now: float = 0.0, room: MemoryBudget = FREE) -> list[str]:
    batch = by.pick(sorted(items, key=lambda i: i.arrived_s), now, room, TENTH)
    assert isinstance(batch, list)
    assert [n for _, n in batch] == [i.remaining_tokens for i, _ in batch]
    return [i.slice.session for i, _ in batch]
