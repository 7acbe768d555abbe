"""Slot `scheduler`: which requests a worker batches next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.core.kv_accounting import MemoryBudget
from serving.core.queued_request import QueuedRequest
from serving.hardware.estimator import Estimator

ScheduledBatch = list[tuple[QueuedRequest, int]]
"""Items and how many of their rows run now."""


class Scheduler(Protocol):
    def pick(
        self, queue: Sequence[QueuedRequest], now: float, memory_budget: MemoryBudget, estimator: Estimator
    ) -> ScheduledBatch | float:
        """A batch, or the time to hold until. `queue`: one per session, oldest first, all of one span."""
        ...


@dataclass(frozen=True)
class StaticBatch:
    """First come, first served, in batches that are full or have waited `window_s` (SLED)."""

    max_num_seqs: int
    window_s: float

    def __post_init__(self) -> None:
        _at_least_one("max_num_seqs", self.max_num_seqs)
        if self.window_s < 0:
            raise ValueError(f"policy.scheduler.window_s is {self.window_s}; it cannot be negative")

    def pick(
        self,
        queue: Sequence[QueuedRequest],
        now: float,
        memory_budget: MemoryBudget,  # noqa: ARG002
        estimator: Estimator,  # noqa: ARG002
    ) -> ScheduledBatch | float:
        due = queue[0].arrived_s + self.window_s
        if len(queue) < self.max_num_seqs and now < due:
            return due
        return [(i, i.remaining_tokens) for i in queue[: self.max_num_seqs]]


@dataclass(frozen=True)
class ContinuousBatch:
    """Whoever is there joins the next iteration; with `chunk_tokens` rows an iteration at most, so that a long prompt
    is run in parts beside the decodes (Sarathi-Serve, Agrawal et al. 2024).

    With a chunk, work of up to 16 rows goes first: sessions enough to fill every batch with it keep prompts waiting.
    """

    max_num_seqs: int = 64
    chunk_tokens: int | None = None

    def __post_init__(self) -> None:
        _at_least_one("max_num_seqs", self.max_num_seqs)
        if self.chunk_tokens is not None:
            _at_least_one("chunk_tokens", self.chunk_tokens)

    def pick(
        self,
        queue: Sequence[QueuedRequest],
        now: float,  # noqa: ARG002
        memory_budget: MemoryBudget,  # noqa: ARG002
        estimator: Estimator,  # noqa: ARG002
    ) -> ScheduledBatch | float:
        if self.chunk_tokens is None:
            return [(i, i.remaining_tokens) for i in queue[: self.max_num_seqs]]
        return _fill_batch(
            sorted(queue, key=lambda i: i.remaining_tokens > MAX_DECODE_TOKENS), self.max_num_seqs, self.chunk_tokens
        )


@dataclass(frozen=True)
class Fifo:
    """The task that came first goes first, `max_num_seqs` of them at a time; others run where those wait elsewhere
    (Hyperion, section IV-B: queues are FIFO, and a node runs little in parallel).
    """

    max_num_seqs: int = 1

    def __post_init__(self) -> None:
        _at_least_one("max_num_seqs", self.max_num_seqs)

    def pick(
        self,
        queue: Sequence[QueuedRequest],
        now: float,  # noqa: ARG002
        memory_budget: MemoryBudget,  # noqa: ARG002
        estimator: Estimator,  # noqa: ARG002
    ) -> ScheduledBatch | float:
        return [(i, i.remaining_tokens) for i in sorted(queue, key=lambda i: i.session_arrived_s)[: self.max_num_seqs]]


@dataclass(frozen=True)
class UpwardRank:
    """HEFT's order: the task with the longest way to its end goes first, `max_num_seqs` of them at a time.

    rank_u of a task is its own time and the rank of what follows it; here what follows is the rest of this pass and a
    pass for each token still to come, so that more tokens to come mean a higher rank.
    """

    max_num_seqs: int = 1

    def __post_init__(self) -> None:
        _at_least_one("max_num_seqs", self.max_num_seqs)

    def pick(
        self,
        queue: Sequence[QueuedRequest],
        now: float,  # noqa: ARG002
        memory_budget: MemoryBudget,  # noqa: ARG002
        estimator: Estimator,  # noqa: ARG002
    ) -> ScheduledBatch | float:
        ranked = sorted(queue, key=lambda i: (-i.request.budget, i.session_arrived_s))
        return [(i, i.remaining_tokens) for i in ranked[: self.max_num_seqs]]


@dataclass(frozen=True)
class VerificationAware:
    """Synera, Algorithm 1: prefills in iterations of their own and first, cut into chunks; else all waiting
    verifications, each a partial prefill of its uncached and its drafted tokens.

    What counts as a prefill: more rows left than a chunk holds. The printed loop ends after a prefill; this one goes
    on.
    """

    max_num_seqs: int = 64
    chunk_tokens: int = 32

    def __post_init__(self) -> None:
        _at_least_one("max_num_seqs", self.max_num_seqs)
        _at_least_one("chunk_tokens", self.chunk_tokens)

    def pick(
        self,
        queue: Sequence[QueuedRequest],
        now: float,  # noqa: ARG002
        memory_budget: MemoryBudget,  # noqa: ARG002
        estimator: Estimator,  # noqa: ARG002
    ) -> ScheduledBatch | float:
        prefills = [i for i in queue if i.remaining_tokens > self.chunk_tokens]
        if prefills:
            return [(i, i.chunk_size(self.chunk_tokens)) for i in prefills[: self.max_num_seqs]]
        return [(i, i.remaining_tokens) for i in queue[: self.max_num_seqs]]


MAX_DECODE_TOKENS = 16
"""Rows up to which a request counts as a decode or a verification, not as a prefill."""


def _fill_batch(queue: Sequence[QueuedRequest], size: int, max_tokens: int) -> ScheduledBatch:
    """Items in order until `max_tokens` are taken; what cannot be cut waits for an iteration that it leads."""
    batch: ScheduledBatch = []
    for item in queue:
        take = item.chunk_size(max_tokens)
        if take > max_tokens and batch:
            continue
        batch.append((item, take))
        max_tokens -= take
        if len(batch) == size or max_tokens <= 0:
            break
    return batch


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"policy.scheduler.{name} is {value}; it must be at least 1")
