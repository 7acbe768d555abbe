"""Slot `scheduler`: batches by deadline; this project's own, after WISP's Algorithm 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from serving.core.kv_accounting import MemoryBudget
from serving.core.queued_request import QueuedRequest
from serving.hardware.estimator import Estimator
from serving.policy.slots.scheduler import ScheduledBatch
from serving.policy.slots.slo_aware import check_slo_options
from serving.policy.slots.slo_batch import SloBatch

_by_deadline = itemgetter(0, 1)


@dataclass(frozen=True)
class DeadlineAware:
    """All requests by deadline, as far as they keep their deadlines; then those that are late.

    It has the lists and the feasibility test of WISP's Algorithm 1 (`SloAware`), and differs in four rules. Requests
    that are not critical go by deadline, not by value density, and leave `guard_s` to all deadlines. Any request that
    has waited `max_wait_s` leads the next batch, late or not. Under overload, requests count as late by
    `max_overhead_share`.

    Args:
        max_overhead_share: under overload (a request is late), a request also counts as late if it could be in time
            only in a batch with a larger share of constant cost, while others wait. 1: never.
    """

    max_num_seqs: int = 64
    guard_s: float = 0.005
    max_wait_s: float = 1.0
    max_overhead_share: float = 0.2

    def __post_init__(self) -> None:
        check_slo_options(self.max_num_seqs, guard_s=self.guard_s, max_wait_s=self.max_wait_s)
        if not 0 < self.max_overhead_share <= 1:
            raise ValueError(
                f"policy.scheduler.max_overhead_share is {self.max_overhead_share}; it is a share of a batch: above 0, "
                "at most 1"
            )

    def pick(
        self, queue: Sequence[QueuedRequest], now: float, memory_budget: MemoryBudget, estimator: Estimator
    ) -> ScheduledBatch | float:
        """O(n log n) in the requests that wait."""
        constant_s = estimator.constant_s(queue[0].span)
        batch = SloBatch(now + constant_s, memory_budget, estimator, self.max_num_seqs)
        patient, critical, calm, late = self._divide(queue, now, constant_s, estimator)
        for item in patient:
            batch.add_first(item)
        in_time = batch.extend(critical, keep_own_deadlines=True)
        if in_time and batch.extend(calm, keep_own_deadlines=True, guard_s=self.guard_s):
            batch.extend(late, keep_own_deadlines=False, guard_s=self.guard_s)
        return batch.batch

    def _divide(
        self, queue: Sequence[QueuedRequest], now: float, constant_s: float, estimator: Estimator
    ) -> tuple[list[QueuedRequest], list[QueuedRequest], list[QueuedRequest], list[QueuedRequest]]:
        """(waited too long, critical, not critical, late) of `queue`, which is in the order of arrival."""
        patient: list[QueuedRequest] = []
        late: list[QueuedRequest] = []
        critical: list[tuple[float, int, QueuedRequest]] = []
        calm: list[tuple[float, int, QueuedRequest]] = []
        long_since, guard_s, base_s = now - self.max_wait_s, self.guard_s, now + constant_s
        costs_s = [estimator.marginal_s(item) for item in queue]
        spares_s = [item.deadline_s - base_s - cost_s for item, cost_s in zip(queue, costs_s, strict=True)]
        overloaded = min(spares_s) < 0
        others_s, filled_s = sum(costs_s), constant_s * (1 / self.max_overhead_share - 1) if overloaded else 0.0
        for place, (item, cost_s, spare_s) in enumerate(zip(queue, costs_s, spares_s, strict=True)):
            if item.arrived_s <= long_since and not patient:
                patient.append(item)
            elif spare_s < max(0.0, min(filled_s, others_s) - cost_s):
                late.append(item)
            else:
                (critical if spare_s <= guard_s else calm).append((item.deadline_s, place, item))
        critical.sort(key=_by_deadline)
        calm.sort(key=_by_deadline)
        return patient, [item for _, _, item in critical], [item for _, _, item in calm], late
