"""The KV caches on a worker's chip: their lengths, the blocks that they take, and the evictions that a batch needs.

The worker keeps these figures itself; the engine holds the tensors.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from serving.core.cached_prefixes import CachedPrefixes
from serving.core.queued_request import QueuedRequest
from serving.messages import INF, SequenceSlice, Span, TokenIds

CacheKey = tuple[str, int]
"""(session, first layer of the span)."""


@dataclass(slots=True)
class _Cache:
    """The account of one cache."""

    length: int = 0
    allocated_tokens: int = 0
    """Tokens that its blocks can hold: no less than in the engine, rejected drafts included."""
    draft_start: int = -1
    """Where the drafts of the last pass began: a tree's accepted drafts are moved together from here on; negative: no
    pass has started.
    """
    tree_tokens: TokenIds = ()
    """The drafts of the last pass, if they were a tree."""


class KVAccounting:
    """
    Args:
        capacity_tokens: tokens that the chip's blocks hold.
        keep_caches: True if caches are kept between two requests of a session. If False, nothing is counted.
        block_tokens: tokens of a block, as in the engine.
        idle_sessions: how many ended sessions leave their caches for others; None: sessions do not share.
    """

    def __init__(
        self, capacity_tokens: float, keep_caches: bool, block_tokens: int = 1, idle_sessions: int | None = None
    ) -> None:
        self.capacity_tokens, self.keep_caches, self.block_tokens = capacity_tokens, keep_caches, block_tokens
        self.prefixes = None if idle_sessions is None else CachedPrefixes(block_tokens)
        self._idle_sessions, self._ended = idle_sessions or 0, dict[str, None]()
        """Sessions that have ended and left their caches, oldest first."""
        self._caches: dict[CacheKey, _Cache] = {}
        """Least recently used first."""
        self._used_tokens = 0

    @property
    def cached_lens(self) -> dict[CacheKey, int]:
        """The length of each cache, least recently used first."""
        return {key: cache.length for key, cache in self._caches.items()}

    def has_cache(self, key: CacheKey) -> bool:
        return key in self._caches

    @property
    def used_tokens(self) -> int:
        """Tokens that all allocated blocks can hold."""
        return self._used_tokens

    @property
    def free_tokens(self) -> float:
        return self.capacity_tokens - self._used_tokens

    def round_up_to_blocks(self, tokens: int) -> int:
        return round_up_to_blocks(tokens, self.block_tokens)

    def valid_len(self, seq: SequenceSlice, span: Span) -> float:
        """Length up to which the cache that this slice continues is valid."""
        first = span.start_layer
        if first == span.end_layer or not self.keep_caches:
            return INF
        cache, kept = self._caches.get((seq.session, first)), seq.kept_tree_nodes
        cached, tree_start = (cache.length, cache.draft_start) if cache else (0, -1)
        if kept is None or tree_start < 0:
            return cached
        return tree_start + len(kept) if max(kept, default=-1) < cached - tree_start else min(tree_start, cached)

    def ends_with_tree(self, seq: SequenceSlice, span: Span) -> bool:
        """True if the cache ends with the tree whose accepted drafts this slice names; False: it continues behind them,
        since they were moved together before.
        """
        cache = self._caches.get((seq.session, span.start_layer))
        tree_start = cache.draft_start if cache else -1
        return tree_start >= 0 and tree_start + len(seq.kept_tree_nodes or ()) == seq.start

    def extra_tokens(self, seq: SequenceSlice, span: Span, num_tokens: int, done_tokens: int = 0) -> int:
        """Tokens of blocks that `num_tokens` more tokens of this slice allocate, after `done_tokens` of them.

        Negative if the slice rolls back more of the cache than it adds.
        """
        if span.start_layer == span.end_layer or not self.keep_caches:
            return 0
        whole = self.round_up_to_blocks(seq.start + done_tokens + num_tokens)
        return whole - self.allocated_tokens((seq.session, span.start_layer))

    def reclaimable_tokens(self, busy_sessions: Iterable[str]) -> float:
        """Tokens of blocks that are free, or would be if all sessions except `busy_sessions` were evicted."""
        if self.capacity_tokens == INF or not self.keep_caches:
            return INF
        busy = set(busy_sessions)
        return self.capacity_tokens - sum(
            [cache.allocated_tokens for key, cache in self._caches.items() if key[0] in busy]
        )

    def allocated_tokens(self, key: CacheKey) -> int:
        """Tokens that the blocks of one cache can hold."""
        cache = self._caches.get(key)
        return cache.allocated_tokens if cache else 0

    def start_forward(self, seq: SequenceSlice, span: Span) -> None:
        """A pass starts: the cache is valid up to `start` only, and blocks are allocated for the whole slice."""
        if span.start_layer < span.end_layer:
            key, end = (seq.session, span.start_layer), seq.start + seq.num_tokens
            cache = self._caches.pop(key, None) or _Cache()  # moves to the end
            self._caches[key] = cache
            if self.prefixes:
                self._ended.pop(seq.session, None)
                self._write_kept_drafts(self.prefixes, cache, seq)
                self.prefixes.cut(seq.session, seq.start)
                cache.tree_tokens = seq.tokens[seq.num_tokens - seq.num_drafts :] if seq.parents is not None else ()
            cache.length, cache.draft_start = seq.start, end - seq.num_drafts
            self._allocate(cache, end)

    def _write_kept_drafts(self, prefixes: CachedPrefixes, cache: _Cache, seq: SequenceSlice) -> None:
        """The accepted drafts of the last pass's tree, which this pass moves behind the text before them."""
        kept = seq.kept_tree_nodes
        if kept and cache.tree_tokens and cache.draft_start + len(kept) == seq.start:
            prefixes.write(seq.session, cache.draft_start, tuple([cache.tree_tokens[node] for node in kept]))

    def finish_forward(self, seq: SequenceSlice, span: Span, num_rejected: int) -> None:
        if span.start_layer < span.end_layer and self.keep_caches:
            key, length = (seq.session, span.start_layer), seq.start + seq.num_tokens - num_rejected
            cache = self._caches[key]
            cache.length = length
            self._allocate(cache, length)
            if self.prefixes:
                drafts = seq.num_drafts if seq.parents is not None else num_rejected
                self.prefixes.write(seq.session, seq.start, seq.tokens[: seq.num_tokens - drafts])

    def copy_prefix(self, seq: SequenceSlice, num_tokens: int) -> None:
        """The first tokens of a text that has no cache yet are copied from another session's."""
        if self.prefixes:
            self.prefixes.write(seq.session, 0, seq.tokens[:num_tokens])

    def end_session(self, session: str) -> list[CacheKey]:
        """An ended session's caches stay for others to begin with, if there is room among the idle ones.

        Returns the caches that are removed instead.
        """
        if not self.prefixes or not self._idle_sessions or not self.prefixes.has(session, self.block_tokens):
            return self.evict_session(session)
        self._ended[session] = None
        oldest = [next(iter(self._ended))] if len(self._ended) > self._idle_sessions else []
        return [key for name in oldest for key in self.evict_session(name)]

    def _allocate(self, cache: _Cache, tokens: int) -> None:
        if self.keep_caches:
            allocated = self.round_up_to_blocks(tokens)
            self._used_tokens += allocated - cache.allocated_tokens
            cache.allocated_tokens = allocated

    def idle_caches(self, busy_sessions: Iterable[str]) -> list[CacheKey]:
        """Caches of all sessions except `busy_sessions`, least recently used first."""
        busy = set(busy_sessions)
        return [key for key in self._caches if key[0] not in busy]

    def evict(self, key: CacheKey) -> None:
        if cache := self._caches.pop(key, None):
            self._used_tokens -= cache.allocated_tokens
            if self.prefixes:
                self._ended.pop(key[0], None)
                self.prefixes.drop(key[0])

    def evict_session(self, session: str) -> list[CacheKey]:
        """Removes a session's caches from the account; returns them."""
        gone = [key for key in self._caches if key[0] == session]
        for key in gone:
            self.evict(key)
        return gone


def round_up_to_blocks(tokens: int, block_tokens: int) -> int:
    """Tokens that the blocks for `tokens` tokens can hold."""
    return -(-tokens // block_tokens) * block_tokens


@dataclass
class MemoryBudget:
    """The memory for a worker's next batch, in tokens of whole blocks; computed on first use."""

    kv_accounting: KVAccounting
    busy_sessions: Iterable[str]
    """Sessions with queued requests; their caches are not evicted for others."""
    _available_tokens: float | None = field(default=None, init=False)

    @property
    def available_tokens(self) -> float:
        """M(t) of WISP, Eq. 14: free blocks, and those that idle sessions' prefixes take."""
        if self._available_tokens is None:
            self._available_tokens = self.kv_accounting.reclaimable_tokens(self.busy_sessions)
        return self._available_tokens

    def lacks_room_for(self, queued: QueuedRequest) -> bool:
        """True if the rest of a request takes more than there is without caches of waiting sessions."""
        return self.extra_tokens(queued) > self.available_tokens

    def extra_tokens(self, queued: QueuedRequest) -> float:
        """What the rest of a request allocates beyond its session's blocks."""
        return (
            0.0
            if self.available_tokens == INF
            else self.kv_accounting.extra_tokens(queued.slice, queued.span, queued.remaining_tokens, queued.done_tokens)
        )


PickedBatch = list[tuple[QueuedRequest, int]]
RequestQueue = Mapping[str, Sequence[QueuedRequest]]
"""Session -> the chunks of its request, in order."""


def admit(
    picked: PickedBatch, kv_accounting: KVAccounting, queue: RequestQueue, evicted: list[CacheKey]
) -> PickedBatch:
    """The requests of a picked batch that fit into the cache budget. Caches that make room are appended to `evicted`.

    Idle sessions' caches are evicted first, least recently used first. For the first request, which must run, the
    caches of queued sessions follow, youngest first; those sessions will miss. Raises RuntimeError if the budget is too
    small for the first request alone.
    """
    if (
        kv_accounting.capacity_tokens == INF
        or not kv_accounting.keep_caches
        or _extra_tokens(picked, kv_accounting) <= kv_accounting.free_tokens
    ):
        return picked
    used = kv_accounting.used_tokens
    fit: PickedBatch = []
    for queued, num_tokens in picked:
        if not has_required_cache(queued, kv_accounting):
            continue
        need = kv_accounting.extra_tokens(queued.slice, queued.span, num_tokens, queued.done_tokens)
        excess = used + need - kv_accounting.capacity_tokens
        if excess > 0:
            gone, freed = _evict_until(
                excess,
                kv_accounting,
                kv_accounting.idle_caches(queue) + ([] if fit else _queued_caches(queued, kv_accounting, queue)),
            )
            used -= freed
            evicted += gone
        if used + need <= kv_accounting.capacity_tokens:
            used += need
            fit.append((queued, num_tokens))
        elif not fit:
            whole = kv_accounting.round_up_to_blocks(queued.cached_len + num_tokens)
            raise RuntimeError(
                f"{queued.slice.session} needs {whole} cached tokens, the budget is {kv_accounting.capacity_tokens}"
            )
    return fit


def _extra_tokens(picked: PickedBatch, kv_accounting: KVAccounting) -> int:
    """Tokens of blocks that the batch allocates, without what roll-backs free."""
    return sum(
        [
            max(0, kv_accounting.extra_tokens(queued.slice, queued.span, num_tokens, queued.done_tokens))
            for queued, num_tokens in picked
        ]
    )


def has_required_cache(queued: QueuedRequest, kv_accounting: KVAccounting) -> bool:
    """True if the cache is as long as this request needs."""
    return bool(queued.prefix_session) or kv_accounting.valid_len(queued.slice, queued.span) >= queued.cached_len


def find_prefix(queued: QueuedRequest, prefixes: CachedPrefixes) -> None:
    """Sets a request of which nothing has run behind the longest prefix of it that another session has cached."""
    seq = queued.slice
    if seq.start or (queued.done_tokens and not queued.prefix_session):
        return
    session, length = prefixes.longest(seq.tokens[: seq.num_tokens - seq.num_drafts], seq.session)
    if (session, length) != (queued.prefix_session, queued.done_tokens):
        queued.begin_behind(session, length)


def take_prefixes(picked: PickedBatch, kv_accounting: KVAccounting) -> tuple[PickedBatch, tuple[str, ...]]:
    """The picked requests, and for each the session to copy its prefix from; "", or no entry: none.

    A request runs from its first token if the batch has evicted that session's cache or writes it anew; a part of its
    length then stays in the queue.
    """
    begins = {queued.slice.session: 0 if queued.prefix_session else queued.cached_len for queued, _ in picked}
    sources = tuple([_prefix_source(queued, begins, kv_accounting) for queued, _ in picked])
    taken: PickedBatch = []
    for (queued, num_tokens), source in zip(picked, sources, strict=True):
        run = num_tokens
        if source:
            kv_accounting.copy_prefix(queued.slice, queued.done_tokens)
        elif queued.prefix_session:
            queued.begin_behind("", 0)
            run = queued.chunk_size(num_tokens)
        queued.prefix_session = ""
        taken.append((queued, run))
    return taken, sources if any(sources) else ()


def _prefix_source(queued: QueuedRequest, begins: Mapping[str, int], kv_accounting: KVAccounting) -> str:
    """The session to copy the request's prefix from; "" if its cache does not keep that prefix until the copy.

    begins    session -> from where the batch writes its cache
    """
    session, length = queued.prefix_session, queued.done_tokens
    cached = kv_accounting.prefixes is not None and kv_accounting.prefixes.has(session, length)
    return session if cached and begins.get(session, length) >= length else ""


def _evict_until(tokens: float, kv_accounting: KVAccounting, victims: Sequence[CacheKey]) -> tuple[list[CacheKey], int]:
    """Evicts caches in this order until `tokens` tokens are freed; returns them, and the tokens freed."""
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
    """Caches of the other queued sessions, youngest first."""
    young = [i for i in reversed([parts[0] for parts in queue.values()]) if i is not excluded]
    keys = [(i.slice.session, i.span.start_layer) for i in young]
    return [key for key in keys if kv_accounting.has_cache(key)]
