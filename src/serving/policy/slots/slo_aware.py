"""Slot `scheduler`: WISP's SLO-aware greedy batches, as printed (Algorithm 1, section 4.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from serving.core.kv_accounting import MemoryBudget
from serving.core.queued_request import QueuedRequest
from serving.hardware.estimator import Estimator
from serving.messages import INF
from serving.policy.slots.scheduler import ScheduledBatch
from serving.policy.slots.slo_batch import SloBatch

_by_rank = itemgetter(0, 1)


class _Lists(NamedTuple):
    """The queue, divided; each list in the order in which it joins a batch."""

    overdue: list[QueuedRequest]
    critical: list[QueuedRequest]
    others: list[QueuedRequest]
    late: list[QueuedRequest]


@dataclass(frozen=True)
class SloAware:
    """Critical requests by deadline, then the others by value density, each list up to its first infeasible request.

    A request is critical from `guard_s` before the last moment at which it can start in a batch of its own (Eq. 17).
    Its value density is its expected tokens over the seconds that it adds to a batch (Eq. 16). It is feasible while
    all requests of the batch keep their deadlines and the memory suffices (Eq. 14, 15). An infeasible critical request
    ends the others' list, too.

    As printed, a late request stays critical, comes first, is infeasible, and nothing is dispatched any more. Two rules
    keep it from standing still, and no more is added. A request that is late even in a batch of its own leaves both
    lists and joins last, where both lists went in whole and as long as the others keep their deadlines; if nothing else
    waits, the late ones run. One that is late or has no deadline leads the next batch once it has waited `max_wait_s`,
    so that none starves.
    """

    max_num_seqs: int = 64
    guard_s: float = 0.005
    max_wait_s: float = 1.0

    def __post_init__(self) -> None:
        check_slo_options(self.max_num_seqs, guard_s=self.guard_s, max_wait_s=self.max_wait_s)

    def pick(
        self, queue: Sequence[QueuedRequest], now: float, memory_budget: MemoryBudget, estimator: Estimator
    ) -> ScheduledBatch | float:
        """O(n log n) in the requests that wait."""
        ends_s = now + estimator.constant_s(queue[0].span)
        batch = SloBatch(ends_s, memory_budget, estimator, self.max_num_seqs)
        lists = self._divide(queue, now, ends_s, estimator)
        for item in lists.overdue:
            batch.add_first(item)
        in_time = batch.extend(lists.critical, keep_own_deadlines=True)
        if in_time and batch.extend(lists.others, keep_own_deadlines=True):
            batch.extend(lists.late, keep_own_deadlines=False)
        return batch.batch

    def _divide(self, queue: Sequence[QueuedRequest], now: float, ends_s: float, estimator: Estimator) -> _Lists:
        """Divides `queue`, which is in the order of arrival; at most one request is overdue."""
        lists = _Lists([], [], [], [])
        critical: list[tuple[float, int, QueuedRequest]] = []
        others: list[tuple[float, int, QueuedRequest]] = []
        long_since = now - self.max_wait_s
        for place, item in enumerate(queue):
            cost_s = estimator.marginal_s(item)
            spare_s = item.deadline_s - ends_s - cost_s
            may_starve = spare_s < 0 or spare_s == INF
            if may_starve and item.arrived_s <= long_since and not lists.overdue:
                lists.overdue.append(item)
            elif spare_s < 0:
                lists.late.append(item)
            elif spare_s <= self.guard_s:
                critical.append((item.deadline_s, place, item))
            else:
                others.append((-value_density(item, cost_s), place, item))
        lists.critical.extend([item for _, _, item in sorted(critical, key=_by_rank)])
        lists.others.extend([item for _, _, item in sorted(others, key=_by_rank)])
        return lists


def value_density(queued: QueuedRequest, cost_s: float) -> float:
    """Expected tokens per second of verification: U of WISP, Eq. 16, with Eq. 5."""
    return queued.expected_tokens / cost_s if cost_s else INF


def check_slo_options(max_num_seqs: int, **seconds: float) -> None:
    """Raises ValueError unless `max_num_seqs` is at least 1 and no time is negative."""
    if max_num_seqs < 1:
        raise ValueError(f"policy.scheduler.max_num_seqs is {max_num_seqs}; it must be at least 1")
    for name, value in seconds.items():
        if value < 0:
            raise ValueError(f"policy.scheduler.{name} is {value}; it cannot be negative")
