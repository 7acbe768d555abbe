"""The KV cache: one slot per session and span over a pool of blocks, so that no batch is ever assembled or taken apart.

Where a slot's blocks lie together, what it holds is a view; where not, it is gathered layer by layer.
"""

import torch

from serving.engines.torch.attention import Gathered, Layers, Spread, Targets, by_layer
from serving.engines.torch.kv_pool import Budget, Pool, Table
from serving.engines.torch.model import Model
from serving.hardware.exit_depths import Depths


class CacheHoleError(RuntimeError):
    """Work that begins behind the end of its session's cache."""


class Slot:
    """Keys and values of one session for layers first..last-1; tokens 0..length-1 are valid, the rest is stale.

    Of a drafter that leaves early, layer i is valid up to `depths.first_below(i)` only; `waiting` are the hidden states
    of the tokens that have not run all layers, in order, for the layer that each is to enter next. Without `pool` it
    has one of its own.
    """

    __slots__ = ("_blocks", "_pool", "_runs", "_table", "depths", "drafts_at", "first", "length", "waiting")

    def __init__(self, model: Model, first: int, last: int, pool: Pool | None = None) -> None:
        self.first, self.length, self.drafts_at = first, 0, 0
        self.depths: Depths | None = None
        self.waiting: list[torch.Tensor] = []
        self._pool = pool or Pool(model, last - first)
        self._table: Table = []
        self._runs: list[torch.Tensor] = []
        self._blocks = 0

    @property
    def blocks(self) -> int:
        return self._blocks

    @property
    def runs(self) -> int:
        """How many stretches of memory the blocks lie in."""
        return len(self._table)

    @property
    def capacity(self) -> int:
        return self._blocks * self._pool.block_tokens

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self._runs)

    def views(self, first: int, last: int) -> tuple[Layers, Layers]:
        """Keys and values of tokens first..last-1: views where their blocks lie together, else gathered anew at each
        look.
        """
        parts = self._parts(first, last)
        if len(parts) == 1:
            return by_layer(parts[0])
        return Gathered([part[0] for part in parts]), Gathered([part[1] for part in parts])

    def targets(self, first: int, last: int) -> tuple[Targets, Targets]:
        """Where keys and values of tokens first..last-1 are written."""
        parts = self._parts(first, last)
        if len(parts) == 1:
            return by_layer(parts[0])
        return Spread([part[0] for part in parts]), Spread([part[1] for part in parts])

    def _parts(self, first: int, last: int) -> list[torch.Tensor]:
        """The runs of tokens first..last-1, each of shape (keys and values, layers, 1, KV heads, tokens, head size)."""
        if len(self._runs) == 1:
            return [self._runs[0].narrow(4, first, last - first)]
        parts: list[torch.Tensor] = []
        at = 0
        for run in self._runs:
            low, high = max(first, at), min(last, at + run.shape[4])
            if low < high:
                parts.append(run.narrow(4, low - at, high - low))
            at += run.shape[4]
        return parts

    def reserve(self, length: int) -> None:
        """Makes room for `length` tokens. Raises CacheFullError beyond the pool's budget."""
        more = -(-length // self._pool.block_tokens) - self._blocks
        if more > 0:
            self._pool.extend(self._table, more)
            self._blocks += more
            self._runs = [self._pool.view(run) for run in self._table]

    def compact(self, drafts: tuple[int, ...]) -> None:
        """Moves the surviving drafts of the last forward to where drafts began, in the order given."""
        at = self.drafts_at
        if max(drafts, default=-1) >= self.length - at:
            raise CacheHoleError(f"draft {max(drafts)} is kept, but only {self.length - at} drafts are in the cache")
        if drafts:
            stored = torch.cat(self._parts(at, self.length), 4)
            kept = stored.index_select(4, torch.tensor(drafts, dtype=torch.long, device=stored.device))
            Spread(self._parts(at, at + len(drafts))).copy_(kept)
        self.length = at + len(drafts)

    def truncate(self, start: int, session: str) -> None:
        """Rolls back to `start` tokens; blocks beyond become free. Raises CacheHoleError when fewer are cached."""
        if self.length < start:
            raise CacheHoleError(
                f"session {session!r} begins at token {start}, but only {self.length} tokens are cached"
            )
        self.length = start
        if self.depths is not None:
            self.depths.truncate(start)
            del self.waiting[self.depths.short :]
        over = self._blocks + -start // self._pool.block_tokens
        if over > 0:
            self._pool.cut(self._table, over)
            self._blocks -= over
            self._runs = [self._pool.view(run) for run in self._table]


class Cache:
    """The slots of one model, by session and part: the first layer of a span, or None for the drafter's.

    Args:
        block_tokens: the size of a block.
        budget_tokens: all slots together hold no more, in whole blocks; None: what memory holds.
    """

    def __init__(self, model: Model, block_tokens: int = 16, budget_tokens: float | None = None) -> None:
        blocks = None if budget_tokens is None or budget_tokens == float("inf") else int(budget_tokens // block_tokens)
        self._model, self._block_tokens, self._budget = model, block_tokens, Budget(blocks)
        self._pools: dict[tuple[int, int], Pool] = {}
        self._slots: dict[tuple[str, int | None], Slot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def blocks(self) -> int:
        """That slots hold."""
        return self._budget.taken

    @property
    def nbytes(self) -> int:
        """Of the blocks that slots hold."""
        return sum(slot.nbytes for slot in self._slots.values())

    @property
    def reserved_nbytes(self) -> int:
        """Of all pools, free blocks included."""
        return sum(pool.nbytes for pool in self._pools.values())

    def length(self, session: str, part: int | None) -> int:
        """How many tokens are cached; 0 for a session that is not known."""
        slot = self._slots.get((session, part))
        return slot.length if slot else 0

    def open(self, session: str, part: int | None, last: int, start: int, keep: tuple[int, ...] | None = None) -> Slot:
        """The slot of a session, rolled back to `start`, after `keep` chose among the drafts of its last forward.

        Raises CacheHoleError when the cache is shorter than `start`.
        """
        slot = self._slots.get((session, part))
        if slot is None:
            slot = self._slots[session, part] = self._slot(part or 0, last)
        if keep is not None:
            slot.compact(keep)
        slot.truncate(start, session)
        return slot

    def _slot(self, first: int, last: int) -> Slot:
        pool = self._pools.get((first, last))
        if pool is None:
            pool = self._pools[first, last] = Pool(self._model, last - first, self._block_tokens, self._budget)
        return Slot(self._model, first, last, pool)

    def drop(self, session: str, part: int | None) -> None:
        """Frees the slot, if there is one."""
        slot = self._slots.pop((session, part), None)
        if slot is not None:
            slot.truncate(0, session)
