"""The KV cache of a session and span: blocks of a pool, read as views if contiguous, else gathered."""

import torch

from serving.engines.torch.attention import GatheredLayers, LayerTargets, LayerTensors, ScatterTarget, by_layer
from serving.engines.torch.kv_pool import BlockBudget, BlockTable, KVPool
from serving.engines.torch.model import DecomposedModel
from serving.hardware.executor import CacheHoleError
from serving.hardware.exit_depths import ExitDepths


class SequenceCache:
    """Keys and values of one session for layers start_layer..end_layer-1; tokens 0..length-1 are valid.

    For a drafter with early exits, layer i is valid up to `exit_depths.cached_at(i)` only; `suspended_hidden` are the
    hidden states of the tokens that have not run all layers, in order, each the input of its next layer.
    Without `pool` the cache has its own.
    """

    __slots__ = (
        "_block_table",
        "_num_blocks",
        "_pool",
        "_run_views",
        "draft_start",
        "exit_depths",
        "length",
        "start_layer",
        "suspended_hidden",
    )

    def __init__(self, model: DecomposedModel, start_layer: int, end_layer: int, pool: KVPool | None = None) -> None:
        self.start_layer, self.length, self.draft_start = start_layer, 0, 0
        self.exit_depths: ExitDepths | None = None
        self.suspended_hidden: list[torch.Tensor] = []
        self._pool = pool or KVPool(model, end_layer - start_layer)
        self._block_table: BlockTable = []
        self._run_views: list[torch.Tensor] = []
        self._num_blocks = 0

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def num_runs(self) -> int:
        """How many contiguous runs the blocks form."""
        return len(self._block_table)

    @property
    def capacity(self) -> int:
        return self._num_blocks * self._pool.block_tokens

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self._run_views)

    def extent_slot(self) -> tuple[torch.Tensor, int] | None:
        """The pool's extent that all tokens lie in, and the slot of the first one; None if they form several runs."""
        return self._pool.extent_slot(self._block_table[0]) if len(self._block_table) == 1 else None

    def read_views(self, first: int, last: int) -> tuple[LayerTensors, LayerTensors]:
        """Keys and values of tokens first..last-1: views of a single run, else gathered at each read."""
        parts = self._run_slices(first, last)
        if len(parts) == 1:
            return by_layer(parts[0])
        return GatheredLayers([part[0] for part in parts]), GatheredLayers([part[1] for part in parts])

    def write_targets(self, first: int, last: int) -> tuple[LayerTargets, LayerTargets]:
        """Where keys and values of tokens first..last-1 are written."""
        parts = self._run_slices(first, last)
        if len(parts) == 1:
            return by_layer(parts[0])
        return ScatterTarget([part[0] for part in parts]), ScatterTarget([part[1] for part in parts])

    def _run_slices(self, first: int, last: int) -> list[torch.Tensor]:
        """The runs of tokens first..last-1, each of shape (keys and values, layers, 1, KV heads, tokens, head size)."""
        if len(self._run_views) == 1:
            return [self._run_views[0].narrow(4, first, last - first)]
        parts: list[torch.Tensor] = []
        at = 0
        for run in self._run_views:
            low, high = max(first, at), min(last, at + run.shape[4])
            if low < high:
                parts.append(run.narrow(4, low - at, high - low))
            at += run.shape[4]
        return parts

    def reserve(self, length: int) -> None:
        """Allocates blocks for `length` tokens. Raises CacheFullError beyond the pool's budget."""
        more = -(-length // self._pool.block_tokens) - self._num_blocks
        if more > 0:
            self._pool.extend(self._block_table, more)
            self._num_blocks += more
            self._run_views = [self._pool.view(run) for run in self._block_table]

    def keep_drafts(self, drafts: tuple[int, ...]) -> None:
        """Keeps only these drafts of the last forward, moved in this order to where drafts began."""
        at = self.draft_start
        if self.length < at:
            raise CacheHoleError(f"drafts begin at token {at}, but only {self.length} tokens are cached")
        if max(drafts, default=-1) >= self.length - at:
            raise CacheHoleError(f"draft {max(drafts)} is kept, but only {self.length - at} drafts are in the cache")
        if drafts:
            stored = torch.cat(self._run_slices(at, self.length), 4)
            kept = stored.index_select(4, torch.tensor(drafts, dtype=torch.long, device=stored.device))
            ScatterTarget(self._run_slices(at, at + len(drafts))).copy_(kept)
        self.length = at + len(drafts)

    def copy_from(self, other: "SequenceCache", length: int, session: str) -> None:
        """Becomes the first `length` tokens of another cache of the same layers. Raises CacheHoleError if it has fewer
        of session `session` in all layers, CacheFullError beyond the pool's budget.
        """
        whole = other.length if other.exit_depths is None else len(other.exit_depths) - other.exit_depths.num_incomplete
        if whole < length:
            raise CacheHoleError(f"session {session!r} has {whole} tokens cached, and {length} are to be copied")
        self.truncate(0, session)
        self.exit_depths = None
        self.reserve(length)
        stored = torch.cat(other._run_slices(0, length), 4)
        ScatterTarget(self._run_slices(0, length)).copy_(stored)
        self.length = self.draft_start = length

    def truncate(self, start: int, session: str) -> None:
        """Rolls back to `start` tokens and frees the blocks beyond. Raises CacheHoleError if fewer are cached."""
        if self.length < start:
            raise CacheHoleError(
                f"session {session!r} begins at token {start}, but only {self.length} tokens are cached"
            )
        self.length = start
        if self.exit_depths is not None:
            self.exit_depths.truncate(start)
            del self.suspended_hidden[self.exit_depths.num_incomplete :]
        surplus = self._num_blocks + -start // self._pool.block_tokens
        if surplus > 0:
            self._pool.free_last(self._block_table, surplus)
            self._num_blocks -= surplus
            self._run_views = [self._pool.view(run) for run in self._block_table]


class KVCacheManager:
    """The caches of one model, by session and start layer; the drafter's has None.

    Args:
        budget_tokens: capacity of all caches together, in whole blocks; None: unlimited.
    """

    def __init__(self, model: DecomposedModel, block_tokens: int = 16, budget_tokens: float | None = None) -> None:
        blocks = None if budget_tokens is None or budget_tokens == float("inf") else int(budget_tokens // block_tokens)
        self._model, self._block_tokens, self._budget = model, block_tokens, BlockBudget(blocks)
        self._pools: dict[tuple[int, int], KVPool] = {}
        self._caches: dict[tuple[str, int | None], SequenceCache] = {}

    def __len__(self) -> int:
        return len(self._caches)

    @property
    def num_blocks(self) -> int:
        return self._budget.num_used

    @property
    def nbytes(self) -> int:
        """Of the blocks in use."""
        return sum(cache.nbytes for cache in self._caches.values())

    @property
    def reserved_nbytes(self) -> int:
        """Of all pools, free blocks included."""
        return sum(pool.nbytes for pool in self._pools.values())

    def length(self, session: str, start_layer: int | None) -> int:
        """How many tokens are cached; 0 for an unknown session."""
        cache = self._caches.get((session, start_layer))
        return cache.length if cache else 0

    def open(
        self,
        session: str,
        start_layer: int | None,
        end_layer: int,
        start: int,
        kept_tree_nodes: tuple[int, ...] | None = None,
    ) -> SequenceCache:
        """A session's cache, rolled back to `start`; before that, `kept_tree_nodes` of its last drafts are kept.

        Raises CacheHoleError if the cache is shorter than `start`.
        """
        cache = self._caches.get((session, start_layer))
        if cache is None:
            cache = self._caches[session, start_layer] = self._new_cache(start_layer or 0, end_layer)
        if kept_tree_nodes is not None:
            cache.keep_drafts(kept_tree_nodes)
        cache.truncate(start, session)
        return cache

    def copy(self, source: str, session: str, start_layer: int | None, end_layer: int, length: int) -> None:
        """The session's cache becomes the first `length` tokens of that of session `source`.

        Raises CacheHoleError if that is shorter, CacheFullError beyond the budget.
        """
        other = self._caches.get((source, start_layer))
        if other is None:
            raise CacheHoleError(f"session {source!r} has no cache, and {length} of its tokens are to be copied")
        self.open(session, start_layer, end_layer, 0).copy_from(other, length, source)

    def _new_cache(self, start_layer: int, end_layer: int) -> SequenceCache:
        pool = self._pools.get((start_layer, end_layer))
        if pool is None:
            pool = self._pools[start_layer, end_layer] = KVPool(
                self._model, end_layer - start_layer, self._block_tokens, self._budget
            )
        return SequenceCache(self._model, start_layer, end_layer, pool)

    def move(self, session: str, to: str) -> None:
        """The drafter's cache of `session`, if there is one, becomes that of `to`."""
        cache = self._caches.pop((session, None), None)
        if cache is not None:
            self.drop(to, None)
            self._caches[to, None] = cache

    def drop(self, session: str, start_layer: int | None) -> None:
        """Frees the session's cache, if there is one."""
        cache = self._caches.pop((session, start_layer), None)
        if cache is not None:
            cache.truncate(0, session)
