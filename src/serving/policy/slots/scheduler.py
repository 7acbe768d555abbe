"""Slot `scheduler`: which requests a worker batches next."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from serving.core.kv_accounting import MemoryBudget
from serving.core.queued_request import QueuedRequest
from serving.hardware.estimator import Estimator

ScheduledBatch = list[tuple[QueuedRequest, int]]
"""Requests, and how many tokens of each run now."""


class Scheduler(Protocol):
    def pick(
        self, queue: Sequence[QueuedRequest], now: float, memory_budget: MemoryBudget, estimator: Estimator
    ) -> ScheduledBatch | float:
        """The next batch, or the time until which to wait for a better one.

        A batch holds at least one request of `queue`: an empty batch is an error, because nothing would wake the worker
        again. Called when the chip is idle and `queue` is not empty.

        Args:
            queue: the first waiting request of each session, oldest first, all of one span.
            now: seconds of the run's clock.
            memory_budget: what the KV cache can still hold.
            estimator: how long a batch would take.
        """
        ...


@dataclass(frozen=True)
class StaticBatch:
    """First come, first served: a batch starts when it is full or its oldest request has waited `window_s` (SLED)."""

    max_num_seqs: int
    window_s: float

    def __post_init__(self) -> None:
        _at_least_one("max_num_seqs", self.max_num_seqs)
        if not 0 <= self.window_s < inf:
            raise ValueError(f"policy.scheduler.window_s is {self.window_s}; give seconds, 0 or more")

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
    """Iteration-level batching: every waiting request joins the next batch.

    With `chunk_tokens`, a batch has at most so many tokens, and a long prompt is computed in chunks beside the decodes
    (Sarathi-Serve, Agrawal et al. 2024). Requests of up to 16 tokens then go first; enough of them delay prompts.
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
class _Ordered(ABC):
    """The first `max_num_seqs` requests by `rank` run whole, the lowest rank first."""

    max_num_seqs: int = 1

    def __post_init__(self) -> None:
        _at_least_one("max_num_seqs", self.max_num_seqs)

    @staticmethod
    @abstractmethod
    def rank(queued: QueuedRequest) -> tuple[float, ...]: ...

    def pick(
        self,
        queue: Sequence[QueuedRequest],
        now: float,  # noqa: ARG002
        memory_budget: MemoryBudget,  # noqa: ARG002
        estimator: Estimator,  # noqa: ARG002
    ) -> ScheduledBatch | float:
        return [(i, i.remaining_tokens) for i in sorted(queue, key=self.rank)[: self.max_num_seqs]]


@dataclass(frozen=True)
class Fifo(_Ordered):
    """The session that came first runs first, `max_num_seqs` at a time (Hyperion, section IV-B: FIFO queues, and nodes
    that run little in parallel). Later sessions run while earlier ones wait on other nodes.
    """

    @staticmethod
    def rank(queued: QueuedRequest) -> tuple[float, ...]:
        return (queued.session_arrived_s,)


@dataclass(frozen=True)
class UpwardRank(_Ordered):
    """HEFT's order: the request with the highest upward rank first, `max_num_seqs` at a time.

    The upward rank of a task is its own time plus the rank of the tasks that follow it. Here these are the rest of this
    pass and one pass for each remaining token, so more remaining tokens mean a higher rank.
    """

    @staticmethod
    def rank(queued: QueuedRequest) -> tuple[float, ...]:
        return -queued.request.budget, queued.session_arrived_s


@dataclass(frozen=True)
class VerificationAware:
    """Prefills first, in iterations of their own; else all verifications, in chunks (Synera, Algorithm 1, section 4.5).

    A prefill has no cached prefix, or is a part of a prompt; it runs whole. A verification is a partial prefill: the
    tokens that the cloud has not cached, then the drafts. One of more than `chunk_tokens` tokens runs so many an
    iteration, beside the other verifications. The printed loop ends after a prefill; this one continues. A prefill
    that needs the memory of a waiting verification's cache runs after the verifications: if they took turns in
    evicting each other, neither would end.
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
        memory_budget: MemoryBudget,
        estimator: Estimator,  # noqa: ARG002
    ) -> ScheduledBatch | float:
        prefills, verifications = [i for i in queue if i.is_prefill], [i for i in queue if not i.is_prefill]
        if prefills and not (verifications and memory_budget.lacks_room_for(prefills[0])):
            return [(i, i.remaining_tokens) for i in prefills[: self.max_num_seqs]]
        return [(i, i.chunk_size(self.chunk_tokens)) for i in verifications[: self.max_num_seqs]]


MAX_DECODE_TOKENS = 16
"""A request of at most so many tokens counts as a decode or a verification, not as a prefill."""


def _fill_batch(queue: Sequence[QueuedRequest], size: int, max_tokens: int) -> ScheduledBatch:
    """Requests in order, up to `max_tokens` tokens. One that cannot be split that small waits until it is the first."""
    batch: ScheduledBatch = []
    for queued in queue:
        num_tokens = queued.chunk_size(max_tokens)
        if num_tokens > max_tokens and batch:
            continue
        batch.append((queued, num_tokens))
        max_tokens -= num_tokens
        if len(batch) == size or max_tokens <= 0:
            break
    return batch


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"policy.scheduler.{name} is {value}; it must be at least 1")
