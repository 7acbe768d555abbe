"""Slot `scheduler`: which requests a worker batches next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.core.kv_accounting import Room
from serving.core.queued_request import Item
from serving.hardware.estimator import Estimator

Batch = list[tuple[Item, int]]
"""Items and how many of their rows run now."""


class Scheduler(Protocol):
    def pick(self, items: Sequence[Item], now: float, room: Room, estimator: Estimator) -> Batch | float:
        """A batch, or the time to hold until. `items`: one per session, oldest first, all of one span."""
        ...


@dataclass(frozen=True)
class StaticBatch:
    """First come, first served, in batches that are full or have waited `window_s` (SLED)."""

    size: int
    window_s: float

    def __post_init__(self) -> None:
        _at_least_one("size", self.size)
        if self.window_s < 0:
            raise ValueError(f"policy.scheduler.window_s is {self.window_s}; it cannot be negative")

    def pick(self, items: Sequence[Item], now: float, room: Room, estimator: Estimator) -> Batch | float:  # noqa: ARG002
        due = items[0].arrived + self.window_s
        if len(items) < self.size and now < due:
            return due
        return [(i, i.left) for i in items[: self.size]]


@dataclass(frozen=True)
class Continuous:
    """Whoever is there joins the next iteration; with `chunk` rows an iteration at most, so that a long prompt is run
    in parts beside the decodes (Sarathi-Serve, Agrawal et al. 2024).

    With a chunk, work of up to 16 rows goes first: sessions enough to fill every batch with it keep prompts waiting.
    """

    size: int = 64
    chunk: int | None = None

    def __post_init__(self) -> None:
        _at_least_one("size", self.size)
        if self.chunk is not None:
            _at_least_one("chunk", self.chunk)

    def pick(self, items: Sequence[Item], now: float, room: Room, estimator: Estimator) -> Batch | float:  # noqa: ARG002
        if self.chunk is None:
            return [(i, i.left) for i in items[: self.size]]
        return _fill(sorted(items, key=lambda i: i.left > DECODE_ROWS), self.size, self.chunk)


@dataclass(frozen=True)
class Fifo:
    """The task that came first goes first, `size` of them at a time; others run where those wait elsewhere (Hyperion,
    section IV-B: queues are FIFO, and a node runs little in parallel).
    """

    size: int = 1

    def __post_init__(self) -> None:
        _at_least_one("size", self.size)

    def pick(self, items: Sequence[Item], now: float, room: Room, estimator: Estimator) -> Batch | float:  # noqa: ARG002
        return [(i, i.left) for i in sorted(items, key=lambda i: i.since)[: self.size]]


@dataclass(frozen=True)
class UpwardRank:
    """HEFT's order: the task with the longest way to its end goes first, `size` of them at a time.

    rank_u of a task is its own time and the rank of what follows it; here what follows is the rest of this pass and a
    pass for each token still to come, so that more tokens to come mean a higher rank.
    """

    size: int = 1

    def __post_init__(self) -> None:
        _at_least_one("size", self.size)

    def pick(self, items: Sequence[Item], now: float, room: Room, estimator: Estimator) -> Batch | float:  # noqa: ARG002
        ranked = sorted(items, key=lambda i: (-i.request.budget, i.since))
        return [(i, i.left) for i in ranked[: self.size]]


@dataclass(frozen=True)
class VerificationAware:
    """Synera, Algorithm 1: prefills in iterations of their own and first, cut into chunks; else all waiting
    verifications, each a partial prefill of its uncached and its drafted tokens.

    What counts as a prefill: more rows left than a chunk holds. The printed loop ends after a prefill; this one goes
    on.
    """

    size: int = 64
    chunk: int = 32

    def __post_init__(self) -> None:
        _at_least_one("size", self.size)
        _at_least_one("chunk", self.chunk)

    def pick(self, items: Sequence[Item], now: float, room: Room, estimator: Estimator) -> Batch | float:  # noqa: ARG002
        prefills = [i for i in items if i.left > self.chunk]
        if prefills:
            return [(i, i.part(self.chunk)) for i in prefills[: self.size]]
        return [(i, i.left) for i in items[: self.size]]


DECODE_ROWS = 16
"""Rows up to which a request counts as a decode or a verification, not as a prefill."""


def _fill(items: Sequence[Item], size: int, rows: int) -> Batch:
    """Items in order until `rows` are taken; what cannot be cut waits for an iteration that it leads."""
    batch: Batch = []
    for item in items:
        take = item.part(rows)
        if take > rows and batch:
            continue
        batch.append((item, take))
        rows -= take
        if len(batch) == size or rows <= 0:
            break
    return batch


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"policy.scheduler.{name} is {value}; it must be at least 1")
