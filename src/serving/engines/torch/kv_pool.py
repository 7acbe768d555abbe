"""The memory of a KV cache: blocks of some tokens each, shared by all sessions of one model and span (PagedAttention,
Kwon et al. 2023).

Which blocks of a pool are free, and where a session's next ones should lie.
"""

from bisect import bisect_right
from typing import NamedTuple

import torch

from serving.engines.torch.model import Model


class Run(NamedTuple):
    """Blocks first..first+size-1, next to each other in memory."""

    first: int
    size: int

    @property
    def end(self) -> int:
        return self.first + self.size


Table = list[Run]
"""A session's blocks in the order of its tokens."""


class Blocks:
    """A map of one byte a block: 0 is free, 1 is taken. Stretches that are apart in memory have a taken byte between
    them, so that no run spans two.
    """

    def __init__(self) -> None:
        self._map = bytearray()
        self.total = self.free = 0

    def grow(self, count: int) -> int:
        """Adds a stretch of free blocks; returns its first."""
        self._map.append(1)
        self._map.extend(bytes(count))
        self.total += count
        self.free += count
        return len(self._map) - count

    def shrink(self, first: int, count: int) -> bool:
        """Takes a stretch away for good, if all of it is free."""
        if self._map[first : first + count] != bytes(count):
            return False
        self._take(first, count)
        self.total -= count
        return True

    def lengthen(self, run: Run, count: int) -> Run | None:
        """The run with `count` blocks more, if those behind it are free."""
        if self._map[run.end : run.end + count] != bytes(count):
            return None
        self._take(run.end, count)
        return Run(run.first, run.size + count)

    def together(self, count: int) -> Run | None:
        """A run for a session, away from its neighbours as long as there is room: they grow, and so does this one."""
        for gap in (max(4, count), max(1, count // 4), 0):
            at = self._map.find(bytes(gap + count + gap))
            if at >= 0:
                self._take(at + gap, count)
                return Run(at + gap, count)
        return None

    def apart(self, count: int) -> Table:
        """The first free blocks, wherever they are; there must be as many."""
        table: Table = []
        at = -1
        for _ in range(count):
            at = self._map.find(0, at + 1)
            self._take(at, 1)
            if table and table[-1].end == at:
                table[-1] = Run(table[-1].first, table[-1].size + 1)
            else:
                table.append(Run(at, 1))
        return table

    def cut(self, table: Table, count: int) -> None:
        """Frees the last `count` blocks of a table."""
        while count:
            run = table.pop()
            kept = max(0, run.size - count)
            gone = run.size - kept
            self._map[run.first + kept : run.end] = bytes(gone)
            self.free += gone
            count -= gone
            if kept:
                table.append(Run(run.first, kept))

    def _take(self, first: int, count: int) -> None:
        self._map[first : first + count] = b"\1" * count
        self.free -= count


_SMALLEST = 64
"""Blocks of the first extent."""


class CacheFullError(RuntimeError):
    """More blocks are asked for than the budget has."""


class Budget:
    """How many blocks all pools of a cache may hand out; None: as many as memory holds."""

    def __init__(self, blocks: int | None = None) -> None:
        self.blocks, self.taken = blocks, 0

    def check(self, count: int) -> None:
        """Raises CacheFullError when fewer than `count` are left."""
        if self.blocks is not None and self.taken + count > self.blocks:
            raise CacheFullError(
                f"{count} more blocks of KV cache are needed, and {self.taken} of {self.blocks} are taken: whoever "
                "starts the work must drop a session first (a worker's ledger does, where it counts the same blocks)"
            )


class Pool:
    """Keys and values in extents of the shape (keys and values, layers, 1, KV heads, tokens, head size).

    What a session has is moved only where its next blocks would lie apart and a free run takes all of it: one copy
    instead of one in every pass. An extent is added when no block is free, or no run long enough while three in four
    are taken; one that a move leaves empty is given back.
    """

    def __init__(self, model: Model, layers: int, block_tokens: int = 16, budget: Budget | None = None) -> None:
        self.block_tokens, self._budget = block_tokens, budget or Budget()
        self._shape = (2, layers, 1, model.kv_heads, 0, model.head_size)
        self._like = torch.empty(self._shape, dtype=model.dtype, device=model.device)
        self._blocks = Blocks()
        self._firsts: list[int] = []
        self._extents: list[torch.Tensor] = []

    @property
    def used(self) -> int:
        """Blocks that sessions hold."""
        return self._blocks.total - self._blocks.free

    @property
    def nbytes(self) -> int:
        """Of all extents, free blocks included."""
        return sum(extent.nbytes for extent in self._extents)

    def view(self, run: Run) -> torch.Tensor:
        """Keys and values of a run of blocks, without a copy."""
        at, size = bisect_right(self._firsts, run.first) - 1, self.block_tokens
        return self._extents[at].narrow(4, (run.first - self._firsts[at]) * size, run.size * size)

    def extend(self, table: Table, count: int) -> None:
        """Adds blocks to a session's table: behind its last, else where all lie together, else anywhere.

        Raises CacheFullError beyond the budget.
        """
        self._budget.check(count)
        held = sum([run.size for run in table])
        if table and (longer := self._blocks.lengthen(table[-1], count)):
            table[-1] = longer
        elif whole := self._together(held + count):
            self._move(table, held, whole)
        else:
            if self._blocks.free < count:
                self._grow(count)
            table += self._blocks.apart(count)
        self._budget.taken += count

    def cut(self, table: Table, count: int) -> None:
        """Frees the last blocks of a table."""
        self._blocks.cut(table, count)
        self._budget.taken -= count

    def _together(self, count: int) -> Run | None:
        run = self._blocks.together(count)
        if run is None and self.used * 4 >= self._blocks.total * 3 and self._grow(2 * count):
            run = self._blocks.together(count)
        return run

    def _move(self, table: Table, held: int, whole: Run) -> None:
        if held:
            torch.cat([self.view(run) for run in table], 4, out=self.view(Run(whole.first, held)))
            self._blocks.cut(table, held)
            if whole.first >= self._firsts[-1]:
                self._give_back()
        table.append(whole)

    def _give_back(self) -> None:
        """Frees extents that have become empty; only at a move to the newest, so that none come and go in turn."""
        for i, (first, extent) in enumerate(zip(self._firsts, self._extents, strict=True)):
            count = extent.shape[4] // self.block_tokens
            if count and self._blocks.shrink(first, count):
                self._extents[i] = self._like

    def _grow(self, least: int) -> bool:
        """By `least` blocks or more, within the budget; are there new ones?"""
        total = self._blocks.total
        count = max(_SMALLEST, least, total // 8)
        if self._budget.blocks is not None:
            count = min(count, self._budget.blocks - total)
        if count > 0:
            shape = (*self._shape[:4], count * self.block_tokens, self._shape[5])
            self._firsts.append(self._blocks.grow(count))
            self._extents.append(self._like.new_empty(shape))
        return count > 0
