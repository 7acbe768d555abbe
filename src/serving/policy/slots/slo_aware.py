"""Slot `scheduler`: batches that keep their requests' SLOs (WISP, Algorithm 1, section 4.3)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal, TypeAlias, get_args

from serving.core.kv_accounting import MemoryBudget
from serving.core.queued_request import QueuedRequest
from serving.hardware.estimator import Estimator
from serving.messages import INF
from serving.policy.slots.scheduler import ScheduledBatch

RankOrder: TypeAlias = Literal["deadline", "value"]
RankedRequests: TypeAlias = list[tuple[float, int, QueuedRequest]]
"""(rank, position in the order of arrival, request)."""
_by_rank = itemgetter(0, 1)


@dataclass(frozen=True)
class SloAware:
    """Critical requests first, by deadline; then the others.

    A request is critical from `guard_s` before the last moment at which it can start in a batch of its own (Eq. 17).
    The batch grows until a request in it would miss its deadline, or memory is full (Eq. 14, 15). A request that is not
    critical must also leave `guard_s` to all deadlines (section 4.4).

    The printed algorithm never dispatches again once a critical request is late. Here late requests join after the
    others, as long as these stay in time. A request that has waited `max_wait_s` leads the next batch.

    Args:
        order: of requests that are not critical: by "deadline", or by "value", the expected tokens per second of
            verification (Eq. 16, as printed).
        max_overhead_share: under overload (a request is late), a request also counts as late if it could be in time
            only in a batch with a larger share of constant cost, while others wait. 1: never (as printed).
    """

    max_num_seqs: int = 64
    guard_s: float = 0.005
    max_wait_s: float = 1.0
    order: RankOrder = "deadline"
    max_overhead_share: float = 0.2

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ValueError(f"policy.scheduler.max_num_seqs is {self.max_num_seqs}; it must be at least 1")
        for name in ("guard_s", "max_wait_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"policy.scheduler.{name} is {getattr(self, name)}; it cannot be negative")
        if self.order not in get_args(RankOrder):
            raise ValueError(f"policy.scheduler.order is {self.order!r}; it is {' or '.join(get_args(RankOrder))}")
        if not 0 < self.max_overhead_share <= 1:
            raise ValueError(
                f"policy.scheduler.max_overhead_share is {self.max_overhead_share}; it is a share of a batch: above 0, "
                "at most 1"
            )

    def pick(
        self, queue: Sequence[QueuedRequest], now: float, memory_budget: MemoryBudget, estimator: Estimator
    ) -> ScheduledBatch | float:
        """O(n log n) in the requests that wait."""
        span = queue[0].span
        constant_s = estimator.constant_s(span)
        batch = _BatchBuilder(now + constant_s, memory_budget, estimator, self.max_num_seqs)
        patient, critical, calm, late = self._classify(queue, now, constant_s, estimator)
        batch.add_first(patient)
        if batch.extend(critical, keep_own_deadlines=True):
            batch.extend(calm, keep_own_deadlines=True, guard_s=self.guard_s)
        batch.extend(late, keep_own_deadlines=False, guard_s=self.guard_s)
        return batch.batch

    def _classify(
        self, queue: Sequence[QueuedRequest], now: float, constant_s: float, estimator: Estimator
    ) -> tuple[list[QueuedRequest], list[QueuedRequest], list[QueuedRequest], list[QueuedRequest]]:
        """(waited too long, critical, not critical, late) of `queue`, which is in the order of arrival."""
        patient: list[QueuedRequest] = []
        late: list[QueuedRequest] = []
        critical: RankedRequests = []
        calm: RankedRequests = []
        long_since, guard_s, base_s = now - self.max_wait_s, self.guard_s, now + constant_s
        by_deadline = self.order == "deadline"
        costs_s = [estimator.marginal_s(item) for item in queue]
        spares_s = [item.deadline_s - base_s - cost_s for item, cost_s in zip(queue, costs_s, strict=True)]
        overloaded = min(spares_s) < 0
        others_s, filled_s = sum(costs_s), constant_s * (1 / self.max_overhead_share - 1) if overloaded else 0.0
        for place, (item, cost_s, spare_s) in enumerate(zip(queue, costs_s, spares_s, strict=True)):
            deadline = item.deadline_s
            if item.arrived_s <= long_since and not patient:
                patient.append(item)
            elif spare_s < max(0.0, min(filled_s, others_s) - cost_s):
                late.append(item)
            elif spare_s <= guard_s:
                critical.append((deadline, place, item))
            else:
                calm.append((deadline if by_deadline else _value_density(item, cost_s), place, item))
        critical.sort(key=_by_rank)
        calm.sort(key=_by_rank)
        return patient, [item for _, _, item in critical], [item for _, _, item in calm], late


def _value_density(queued: QueuedRequest, cost_s: float) -> float:
    """A rank that is lowest for most expected tokens per second of verification."""
    return -queued.expected_tokens / cost_s if cost_s else -INF


class _BatchBuilder:
    """A batch under construction: when it would end, what memory it takes, and its earliest deadline."""

    def __init__(self, ends_s: float, memory_budget: MemoryBudget, estimator: Estimator, max_num_seqs: int) -> None:
        self.batch: ScheduledBatch = []
        self.end_s, self._deadline_s, self._used_tokens = ends_s, INF, 0.0
        self._memory_budget, self._estimator, self._max_num_seqs = memory_budget, estimator, max_num_seqs

    def add_first(self, requests: Sequence[QueuedRequest]) -> None:
        """Adds these requests without a check."""
        for item in requests:
            self._add(item, INF, self._memory_budget.extra_tokens(item))

    def extend(self, requests: Iterable[QueuedRequest], keep_own_deadlines: bool, guard_s: float = 0.0) -> bool:
        """Adds requests up to the first that does not fit. Returns True if all fit.

        Args:
            keep_own_deadlines: True if the added requests' own deadlines count, too.
            guard_s: the batch ends this long before the earliest deadline.
        """
        for item in requests:
            due_s = min(self._deadline_s, item.deadline_s) if keep_own_deadlines else self._deadline_s
            need = self._memory_budget.extra_tokens(item)
            fits = (
                len(self.batch) < self._max_num_seqs
                and self._used_tokens + need <= self._memory_budget.available_tokens
            )
            in_time = self.end_s + self._estimator.marginal_s(item) + guard_s <= due_s
            if self.batch and not (fits and in_time):
                return False
            self._add(item, due_s, need)
        return True

    def _add(self, queued: QueuedRequest, deadline_s: float, tokens: float) -> None:
        self.batch.append((queued, queued.remaining_tokens))
        self.end_s += self._estimator.marginal_s(queued)
        self._deadline_s, self._used_tokens = deadline_s, self._used_tokens + tokens
