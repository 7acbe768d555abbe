"""The blocks of a KV cache, shared by all sessions of one model and span (PagedAttention, Kwon et al. 2023)."""

from bisect import bisect_right
from typing import NamedTuple

import torch

from serving.engines.torch.model import DecomposedModel
from serving.hardware.executor import CacheFullError


class BlockRun(NamedTuple):
    """Contiguous blocks first_block..end-1."""

    first_block: int
    num_blocks: int

    @property
    def end(self) -> int:
        return self.first_block + self.num_blocks


BlockTable = list[BlockRun]
"""A session's blocks in the order of its tokens."""


class BlockAllocator:
    """A map of one byte per block: 0 is free, 1 is used. A used byte separates extents, so that no run spans two."""

    def __init__(self) -> None:
        self._used_map = bytearray()
        self.num_blocks = self.num_free = 0

    def add_extent(self, count: int) -> int:
        """Adds an extent of free blocks; returns its first block."""
        self._used_map.append(1)
        self._used_map.extend(bytes(count))
        self.num_blocks += count
        self.num_free += count
        return len(self._used_map) - count

    def remove_extent(self, first: int, count: int) -> bool:
        """Removes an extent if all its blocks are free. True if it did."""
        if self._used_map[first : first + count] != bytes(count):
            return False
        self._mark_used(first, count)
        self.num_blocks -= count
        return True

    def extend_run(self, run: BlockRun, count: int) -> BlockRun | None:
        """The run with `count` more blocks, or None if the blocks after it are not free."""
        if self._used_map[run.end : run.end + count] != bytes(count):
            return None
        self._mark_used(run.end, count)
        return BlockRun(run.first_block, run.num_blocks + count)

    def allocate_contiguous(self, count: int) -> BlockRun | None:
        """A run with a gap to its neighbours as long as there is room, so that all of them can grow."""
        for gap in (max(4, count), max(1, count // 4), 0):
            at = self._used_map.find(bytes(gap + count + gap))
            if at >= 0:
                self._mark_used(at + gap, count)
                return BlockRun(at + gap, count)
        return None

    def allocate_scattered(self, count: int) -> BlockTable:
        """The first free blocks; there must be as many."""
        table: BlockTable = []
        at = -1
        for _ in range(count):
            at = self._used_map.find(0, at + 1)
            self._mark_used(at, 1)
            if table and table[-1].end == at:
                table[-1] = BlockRun(table[-1].first_block, table[-1].num_blocks + 1)
            else:
                table.append(BlockRun(at, 1))
        return table

    def free_last(self, table: BlockTable, count: int) -> None:
        """Frees the last `count` blocks of a table."""
        while count:
            run = table.pop()
            kept = max(0, run.num_blocks - count)
            gone = run.num_blocks - kept
            self._used_map[run.first_block + kept : run.end] = bytes(gone)
            self.num_free += gone
            count -= gone
            if kept:
                table.append(BlockRun(run.first_block, kept))

    def _mark_used(self, first: int, count: int) -> None:
        self._used_map[first : first + count] = b"\1" * count
        self.num_free -= count


_MIN_EXTENT_BLOCKS = 64
"""Blocks of an extent on a CPU."""
_GPU_EXTENT_TOKENS, _GPU_EXTENT_SHARE = 65_536, 4
"""An extent on a GPU holds 65,536 tokens, or takes a quarter of the free memory if they need more than that. A pass is
replayed only if all of its caches lie in one extent.
"""


class BlockBudget:
    """The number of blocks that all pools of a cache may allocate; None: unlimited."""

    def __init__(self, max_blocks: int | None = None) -> None:
        self.max_blocks, self.num_used = max_blocks, 0

    def check(self, count: int) -> None:
        """Raises CacheFullError if fewer than `count` are left."""
        if self.max_blocks is not None and self.num_used + count > self.max_blocks:
            raise CacheFullError(
                f"{count} more blocks of KV cache are needed, and {self.num_used} of {self.max_blocks} are taken; "
                "the node must drop a session before it starts the work (its KV accounting counts the same blocks)"
            )


def gpu_extent_blocks(free_nbytes: int, block_nbytes: int, block_tokens: int) -> int:
    """Blocks of an extent on a GPU with so much free memory."""
    affordable = free_nbytes // _GPU_EXTENT_SHARE // block_nbytes
    return max(_MIN_EXTENT_BLOCKS, min(affordable, _GPU_EXTENT_TOKENS // block_tokens))


class KVPool:
    """Keys and values in extents of the shape (keys and values, layers, 1, KV heads, tokens, head size).

    A session's blocks are moved if its next ones would not be contiguous and a free run is long enough for all: one
    copy instead of one per pass. An extent is added if no block is free, or if three in four are used and no run is
    long enough. An extent that a move leaves empty is freed.
    """

    def __init__(
        self, model: DecomposedModel, num_layers: int, block_tokens: int = 16, budget: BlockBudget | None = None
    ) -> None:
        self.block_tokens, self._budget = block_tokens, budget or BlockBudget()
        self._shape = (2, num_layers, 1, model.kv_heads, 0, model.head_size)
        self._empty = torch.empty(self._shape, dtype=model.dtype, device=model.device)
        self._allocator = BlockAllocator()
        self._min_extent_blocks = _MIN_EXTENT_BLOCKS
        if model.device.type == "cuda":
            shape = (*self._shape[:4], block_tokens, self._shape[5])
            free_nbytes, block_nbytes = torch.cuda.mem_get_info(model.device)[0], self._empty.new_empty(shape).nbytes
            self._min_extent_blocks = gpu_extent_blocks(free_nbytes, block_nbytes, block_tokens)
        self._extent_starts: list[int] = []
        self._extents: list[torch.Tensor] = []

    @property
    def num_used_blocks(self) -> int:
        """Blocks that sessions hold."""
        return self._allocator.num_blocks - self._allocator.num_free

    @property
    def nbytes(self) -> int:
        """Of all extents, free blocks included."""
        return sum(extent.nbytes for extent in self._extents)

    def view(self, run: BlockRun) -> torch.Tensor:
        """Keys and values of a run of blocks, without a copy."""
        extent, first_slot = self.extent_slot(run)
        return extent.narrow(4, first_slot, run.num_blocks * self.block_tokens)

    def extent_slot(self, run: BlockRun) -> tuple[torch.Tensor, int]:
        """The extent of a run of blocks, and the slot of its first token there."""
        at = bisect_right(self._extent_starts, run.first_block) - 1
        return self._extents[at], (run.first_block - self._extent_starts[at]) * self.block_tokens

    def extend(self, table: BlockTable, count: int) -> None:
        """Adds blocks to a session's table: after its last one, else in a contiguous run for all, else anywhere.

        Raises CacheFullError beyond the budget.
        """
        self._budget.check(count)
        num_held = sum([run.num_blocks for run in table])
        if table and (longer := self._allocator.extend_run(table[-1], count)):
            table[-1] = longer
        elif target := self._allocate_contiguous(num_held + count):
            self._relocate(table, num_held, target)
        else:
            if self._allocator.num_free < count:
                self._add_extent(count)
            table += self._allocator.allocate_scattered(count)
        self._budget.num_used += count

    def free_last(self, table: BlockTable, count: int) -> None:
        """Frees the last blocks of a table."""
        self._allocator.free_last(table, count)
        self._budget.num_used -= count

    def _allocate_contiguous(self, count: int) -> BlockRun | None:
        run = self._allocator.allocate_contiguous(count)
        if run is None and self.num_used_blocks * 4 >= self._allocator.num_blocks * 3 and self._add_extent(2 * count):
            run = self._allocator.allocate_contiguous(count)
        return run

    def _relocate(self, table: BlockTable, num_held: int, target: BlockRun) -> None:
        if num_held:
            torch.cat([self.view(run) for run in table], 4, out=self.view(BlockRun(target.first_block, num_held)))
            self._allocator.free_last(table, num_held)
            if target.first_block >= self._extent_starts[-1]:
                self._release_empty_extents()
        table.append(target)

    def _release_empty_extents(self) -> None:
        """Frees empty extents. Called only after a move to the newest one, so that extents do not alternate."""
        for i, (first, extent) in enumerate(zip(self._extent_starts, self._extents, strict=True)):
            count = extent.shape[4] // self.block_tokens
            if count and self._allocator.remove_extent(first, count):
                self._extents[i] = self._empty

    def _add_extent(self, min_blocks: int) -> bool:
        """Adds at least `min_blocks` blocks, within the budget. True if it added any."""
        total = self._allocator.num_blocks
        count = max(self._min_extent_blocks, min_blocks, total // 8)
        if self._budget.max_blocks is not None:
            count = min(count, self._budget.max_blocks - total)
        if count > 0:
            shape = (*self._shape[:4], count * self.block_tokens, self._shape[5])
            self._extent_starts.append(self._allocator.add_extent(count))
            self._extents.append(self._empty.new_empty(shape))
        return count > 0
