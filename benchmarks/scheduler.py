"""What one decision of a scheduler that keeps deadlines takes with 200 requests waiting, and how it grows."""

import statistics
import time

from serving.core.keyed_random import key, uniform
from serving.core.kv_accounting import KVAccounting, MemoryBudget
from serving.core.queued_request import QueuedRequest
from serving.hardware.estimator import Estimator
from serving.hardware.latency import LayerScale, LinearLatency
from serving.messages import Request, SequenceSlice, Span
from serving.policy.slots.deadline_aware import DeadlineAware
from serving.policy.slots.slo_aware import SloAware

NUM_WAITING, NUM_WAITING_LARGE = 200, 1600
LIMIT_MS = 2.0
LIMIT_GROWTH = 16.0
"""Of eight times as many requests: n log n is 11.1 times."""
RUNS = 200
SPAN = Span(0, 64, embedding=True, lm_head=True)
ESTIMATOR = Estimator(LinearLatency(33.14e-6, 34.5e-9, 4.62e-6, 14.86e-3, 64, "WISP, Table 12"), LayerScale(64, 64))


def main() -> bool:
    return all([_is_within_limits(SloAware), _is_within_limits(DeadlineAware)])


def _is_within_limits(kind: type[SloAware] | type[DeadlineAware]) -> bool:
    few_ms, many_ms = _median_ms(kind, NUM_WAITING), _median_ms(kind, NUM_WAITING_LARGE)
    growth = many_ms / few_ms
    print(
        f"{kind.__name__}: {few_ms:.2f} ms a decision over {NUM_WAITING} requests (limit {LIMIT_MS:g}), "
        f"{many_ms:.2f} ms over {NUM_WAITING_LARGE}: {growth:.1f} times (limit {LIMIT_GROWTH:g})"
    )
    return few_ms <= LIMIT_MS and growth <= LIMIT_GROWTH


def _median_ms(kind: type[SloAware] | type[DeadlineAware], n: int) -> float:
    """Every request is new to the scheduler, so that its cost is worked out too."""
    scheduler, room = kind(max_num_seqs=n), MemoryBudget(KVAccounting(1e9, keep_caches=True), ())
    seconds = []
    for run in range(RUNS):
        items = [_item(i, key(run, "waiting")) for i in range(n)]
        began = time.perf_counter()
        scheduler.pick(items, 0.5, room, ESTIMATOR)
        seconds.append(time.perf_counter() - began)
    return 1e3 * statistics.median(seconds)


def _item(i: int, stream: int) -> QueuedRequest:
    slack_s, drafts = uniform(stream, i, "slack"), 1 + int(8 * uniform(stream, i, "drafts"))
    rows = SequenceSlice(f"s{i}", 500, drafts + 1, tuple(range(drafts + 1)), drafts, "greedy")
    return QueuedRequest(
        Request(0, rows, (), 0, (), "device", 1, slack_s, 1 + drafts), rows, SPAN, 0.4 * i / 200, drafts + 1
    )


if __name__ == "__main__":
    raise SystemExit(not main())
