"""What a worker knows of the caches on its chip: lengths per (session, first layer of the span), and the blocks that
they take of a budget.

The memory that a worker's next batch may take.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from serving.core.queued_request import Item
from serving.messages import INF, Rows, Span

Key = tuple[str, int]


class Ledger:
    """
    Args:
        capacity_tokens: what the chip holds; blocks are taken whole.
        keep: are caches kept between two questions? If not, nothing is counted.
        block_tokens: as large as the engine's.
    """

    def __init__(self, capacity_tokens: float, keep: bool, block_tokens: int = 1) -> None:
        self.capacity, self.keep, self.block_tokens = capacity_tokens, keep, block_tokens
        self.lengths: dict[Key, int] = {}
        self._drafts_from: dict[Key, int] = {}
        """Where the drafts of the last forward began: what a tree verdict compacts from."""
        self._held: dict[Key, int] = {}
        """Tokens that the chip's blocks can hold: at least what the engine has taken, drafts that ran included."""
        self._used = 0

    @property
    def used(self) -> int:
        """Tokens that all blocks taken can hold."""
        return self._used

    @property
    def free(self) -> float:
        return self.capacity - self._used

    def whole(self, tokens: int) -> int:
        """Tokens that the blocks of a session of so many tokens can hold."""
        return whole(tokens, self.block_tokens)

    def valid(self, rows: Rows, span: Span) -> float:
        """Up to which length the cache that these rows need is valid."""
        first = span.first
        if first == span.last or not self.keep:
            return INF
        key = rows.session, first
        if rows.keep is not None and key in self._drafts_from:
            return self._drafts_from[key] + len(rows.keep)
        return self.lengths.get(key, 0)

    def need(self, rows: Rows, span: Span, n: int, done: int = 0) -> int:
        """Tokens' worth of blocks that are taken when `n` more of these rows run, `done` of them having run before.

        Negative where their roll-back frees more than they take.
        """
        if span.first == span.last or not self.keep:
            return 0
        return self.whole(rows.start + done + n) - self._held.get((rows.session, span.first), 0)

    def room(self, busy: Iterable[str]) -> float:
        """Tokens' worth of blocks that are free, or would be if all sessions but `busy` were evicted."""
        if self.capacity == INF or not self.keep:
            return INF
        waiting = set(busy)
        return self.capacity - sum([held for key, held in self._held.items() if key[0] in waiting])

    def held(self, key: Key) -> int:
        """Tokens that the blocks of one cache can hold."""
        return self._held.get(key, 0)

    def started(self, rows: Rows, span: Span) -> None:
        """Rows are about to run: until they are done only `start` is sure, and blocks are taken for all of them."""
        if span.first < span.last:
            key, start, lengths = (rows.session, span.first), rows.start, self.lengths
            lengths.pop(key, None)  # to the end: the order is that of use
            lengths[key] = start
            self._drafts_from[key] = start + rows.n - rows.check
            self._hold(key, start + rows.n)

    def finished(self, rows: Rows, span: Span, rejected: int) -> None:
        if span.first < span.last and self.keep:
            key, length = (rows.session, span.first), rows.start + rows.n - rejected
            self.lengths[key] = length
            self._hold(key, length)

    def _hold(self, key: Key, tokens: int) -> None:
        if self.keep:
            held = self.whole(tokens)
            self._used += held - self._held.get(key, 0)
            self._held[key] = held

    def idle(self, busy: Iterable[str]) -> list[Key]:
        """Caches of sessions that wait for nothing here, the longest unused first."""
        waiting = set(busy)
        return [key for key in self.lengths if key[0] not in waiting]

    def evict(self, key: Key) -> None:
        self.lengths.pop(key, None)
        self._drafts_from.pop(key, None)
        self._used -= self._held.pop(key, 0)

    def forget(self, session: str) -> list[Key]:
        """Strikes out a session; returns the caches it had."""
        gone = [key for key in self.lengths if key[0] == session]
        for key in gone:
            self.evict(key)
        return gone


def whole(tokens: int, block_tokens: int) -> int:
    """So many tokens in whole blocks."""
    return -(-tokens // block_tokens) * block_tokens


@dataclass
class Room:
    """In tokens of whole blocks; asked for only by schedulers that look at it."""

    ledger: Ledger
    busy: Iterable[str]
    """Sessions that wait here: their caches are not given up for others."""

    @cached_property
    def tokens(self) -> float:
        """M(t) of WISP, Eq. 14: what is free, and what idle sessions' prefixes would leave."""
        return self.ledger.room(self.busy)

    def need(self, item: Item) -> float:
        """What running the rest of a request takes beyond what its session has."""
        return 0.0 if self.tokens == INF else self.ledger.need(item.rows, item.span, item.left, item.done)
