"""What a worker knows of the caches on its chip: lengths per (session, first layer of the span), and the blocks that
they take of a budget.

The memory that a worker's next batch may take.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from serving.core.queued_request import QueuedRequest
from serving.messages import INF, SequenceSlice, Span

CacheKey = tuple[str, int]


class KVAccounting:
    """
    Args:
        capacity_tokens: what the chip holds; blocks are taken whole.
        keep: are caches kept between two questions? If not, nothing is counted.
        block_tokens: as large as the engine's.
    """

    def __init__(self, capacity_tokens: float, keep_caches: bool, block_tokens: int = 1) -> None:
        self.capacity_tokens, self.keep_caches, self.block_tokens = capacity_tokens, keep_caches, block_tokens
        self.cached_lens: dict[CacheKey, int] = {}
        self._draft_starts: dict[CacheKey, int] = {}
        """Where the drafts of the last forward began: what a tree verdict compacts from."""
        self._allocated: dict[CacheKey, int] = {}
        """Tokens that the chip's blocks can hold: at least what the engine has taken, drafts that ran included."""
        self._used_tokens = 0

    @property
    def used_tokens(self) -> int:
        """Tokens that all blocks taken can hold."""
        return self._used_tokens

    @property
    def free_tokens(self) -> float:
        return self.capacity_tokens - self._used_tokens

    def round_up_to_blocks(self, tokens: int) -> int:
        """Tokens that the blocks of a session of so many tokens can hold."""
        return round_up_to_blocks(tokens, self.block_tokens)

    def valid_len(self, seq: SequenceSlice, span: Span) -> float:
        """Up to which length the cache that these rows need is valid."""
        first = span.start_layer
        if first == span.end_layer or not self.keep_caches:
            return INF
        key = seq.session, first
        if seq.kept_tree_nodes is not None and key in self._draft_starts:
            return self._draft_starts[key] + len(seq.kept_tree_nodes)
        return self.cached_lens.get(key, 0)

    def extra_tokens(self, seq: SequenceSlice, span: Span, num_tokens: int, done_tokens: int = 0) -> int:
        """Tokens' worth of blocks that are taken when `num_tokens` more of these rows run, `done_tokens` of them having
        run before.

        Negative where their roll-back frees more than they take.
        """
        if span.start_layer == span.end_layer or not self.keep_caches:
            return 0
        return self.round_up_to_blocks(seq.start + done_tokens + num_tokens) - self._allocated.get(
            (seq.session, span.start_layer), 0
        )

    def reclaimable_tokens(self, busy_sessions: Iterable[str]) -> float:
        """Tokens' worth of blocks that are free, or would be if all sessions but `busy_sessions` were evicted."""
        if self.capacity_tokens == INF or not self.keep_caches:
            return INF
        waiting = set(busy_sessions)
        return self.capacity_tokens - sum([held for key, held in self._allocated.items() if key[0] in waiting])

    def allocated_tokens(self, key: CacheKey) -> int:
        """Tokens that the blocks of one cache can hold."""
        return self._allocated.get(key, 0)

    def start_forward(self, seq: SequenceSlice, span: Span) -> None:
        """Rows are about to run: until they are done only `start` is sure, and blocks are taken for all of them."""
        if span.start_layer < span.end_layer:
            key, start, lengths = (seq.session, span.start_layer), seq.start, self.cached_lens
            lengths.pop(key, None)  # to the end: the order is that of use
            lengths[key] = start
            self._draft_starts[key] = start + seq.num_tokens - seq.num_drafts
            self._allocate(key, start + seq.num_tokens)

    def finish_forward(self, seq: SequenceSlice, span: Span, num_rejected: int) -> None:
        if span.start_layer < span.end_layer and self.keep_caches:
            key, length = (seq.session, span.start_layer), seq.start + seq.num_tokens - num_rejected
            self.cached_lens[key] = length
            self._allocate(key, length)

    def _allocate(self, key: CacheKey, tokens: int) -> None:
        if self.keep_caches:
            held = self.round_up_to_blocks(tokens)
            self._used_tokens += held - self._allocated.get(key, 0)
            self._allocated[key] = held

    def idle_caches(self, busy_sessions: Iterable[str]) -> list[CacheKey]:
        """Caches of sessions that wait for nothing here, the longest unused first."""
        waiting = set(busy_sessions)
        return [key for key in self.cached_lens if key[0] not in waiting]

    def evict(self, key: CacheKey) -> None:
        self.cached_lens.pop(key, None)
        self._draft_starts.pop(key, None)
        self._used_tokens -= self._allocated.pop(key, 0)

    def evict_session(self, session: str) -> list[CacheKey]:
        """Strikes out a session; returns the caches it had."""
        gone = [key for key in self.cached_lens if key[0] == session]
        for key in gone:
            self.evict(key)
        return gone


def round_up_to_blocks(tokens: int, block_tokens: int) -> int:
    """So many tokens in whole blocks."""
    return -(-tokens // block_tokens) * block_tokens


@dataclass
class MemoryBudget:
    """In tokens of whole blocks; asked for only by schedulers that look at it."""

    kv_accounting: KVAccounting
    busy_sessions: Iterable[str]
    """Sessions that wait here: their caches are not given up for others."""

    @cached_property
    def available_tokens(self) -> float:
        """M(t) of WISP, Eq. 14: what is free, and what idle sessions' prefixes would leave."""
        return self.kv_accounting.reclaimable_tokens(self.busy_sessions)

    def extra_tokens(self, queued: QueuedRequest) -> float:
        """What running the rest of a request takes beyond what its session has."""
        return (
            0.0
            if self.available_tokens == INF
            else self.kv_accounting.extra_tokens(queued.slice, queued.span, queued.remaining_tokens, queued.done_tokens)
        )


PickedBatch = list[tuple[QueuedRequest, int]]
RequestQueue = Mapping[str, Sequence[QueuedRequest]]
"""Session -> its parts in order."""


def admit(picked: PickedBatch, kv_accounting: KVAccounting, queue: RequestQueue) -> tuple[PickedBatch, list[CacheKey]]:
    """What runs now, and the caches that the ledger has struck out for it; who lost its own will miss.

    Raises RuntimeError when the budget is too small for the first alone.
    """
    if (
        kv_accounting.capacity_tokens == INF
        or not kv_accounting.keep_caches
        or _extra_tokens(picked, kv_accounting) <= kv_accounting.free_tokens
    ):
        return picked, []
    used = kv_accounting.used_tokens
    fit: PickedBatch = []
    evicted: list[CacheKey] = []
    for item, rows in picked:
        if not has_required_cache(item, kv_accounting):
            continue
        need = kv_accounting.extra_tokens(item.slice, item.span, rows, item.done_tokens)
        over = used + need - kv_accounting.capacity_tokens
        if over > 0:
            gone, freed = _evict_until(
                over,
                kv_accounting,
                kv_accounting.idle_caches(queue) + ([] if fit else _queued_caches(item, kv_accounting, queue)),
            )
            used -= freed
            evicted += gone
        if used + need <= kv_accounting.capacity_tokens:
            used += need
            fit.append((item, rows))
        elif not fit:
            whole = kv_accounting.round_up_to_blocks(item.cached_len + rows)
            raise RuntimeError(
                f"{item.slice.session} needs {whole} cached tokens, the budget is {kv_accounting.capacity_tokens}"
            )
    return fit, evicted


def _extra_tokens(picked: PickedBatch, kv_accounting: KVAccounting) -> int:
    """Blocks that the batch takes, in tokens, at any time while it starts."""
    return sum(
        [max(0, kv_accounting.extra_tokens(item.slice, item.span, rows, item.done_tokens)) for item, rows in picked]
    )


def has_required_cache(queued: QueuedRequest, kv_accounting: KVAccounting) -> bool:
    """Is the cache as long as what this item builds on?"""
    return kv_accounting.valid_len(queued.slice, queued.span) >= queued.cached_len


def _evict_until(tokens: float, kv_accounting: KVAccounting, victims: Sequence[CacheKey]) -> tuple[list[CacheKey], int]:
    """Strikes out caches in this order until `tokens` are free; returns them, and how many became free."""
    gone: list[CacheKey] = []
    freed = 0
    for key in victims:
        if freed >= tokens:
            break
        freed += kv_accounting.allocated_tokens(key)
        kv_accounting.evict(key)
        gone.append(key)
    return gone, freed


def _queued_caches(excluded: QueuedRequest, kv_accounting: KVAccounting, queue: RequestQueue) -> list[CacheKey]:
    """Caches of sessions that wait here, the youngest first."""
    young = [i for i in reversed([parts[0] for parts in queue.values()]) if i is not excluded]
    keys = [(i.slice.session, i.span.start_layer) for i in young]
    return [key for key in keys if key in kv_accounting.cached_lens]
