"""A batch under construction that keeps deadlines and memory: FeasibleAdd of WISP, Algorithm 1."""

from collections.abc import Iterable

from serving.core.kv_accounting import MemoryBudget
from serving.core.queued_request import QueuedRequest
from serving.hardware.estimator import Estimator
from serving.messages import INF
from serving.policy.slots.scheduler import ScheduledBatch


class SloBatch:
    """When the batch would end, what memory it takes, and its earliest deadline.

    Args:
        ends_s: when a batch without requests would end.
    """

    def __init__(self, ends_s: float, memory_budget: MemoryBudget, estimator: Estimator, max_num_seqs: int) -> None:
        self.batch: ScheduledBatch = []
        self._end_s, self._deadline_s, self._used_tokens = ends_s, INF, 0.0
        self._memory_budget, self._estimator, self._max_num_seqs = memory_budget, estimator, max_num_seqs

    def add_first(self, queued: QueuedRequest) -> None:
        """Adds a request without a check; its deadline does not count."""
        self._add(queued, INF, self._memory_budget.extra_tokens(queued))

    def extend(self, requests: Iterable[QueuedRequest], keep_own_deadlines: bool, guard_s: float = 0.0) -> bool:
        """Adds requests up to the first that does not fit. Returns True if all fit.

        The first request of a batch always fits: a worker evicts caches for it.

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
            in_time = self._end_s + self._estimator.marginal_s(item) + guard_s <= due_s
            if self.batch and not (fits and in_time):
                return False
            self._add(item, due_s, need)
        return True

    def _add(self, queued: QueuedRequest, deadline_s: float, tokens: float) -> None:
        self.batch.append((queued, queued.remaining_tokens))
        self._end_s += self._estimator.marginal_s(queued)
        self._deadline_s, self._used_tokens = deadline_s, self._used_tokens + tokens
