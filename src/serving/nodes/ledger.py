"""What a worker knows of the caches on its chip: lengths per (session, first layer of the span), within a budget of
tokens.
"""

from collections.abc import Iterable

from serving.messages import INF, Rows, Span

Key = tuple[str, int]


class Ledger:
    def __init__(self, capacity_tokens: float, keep: bool) -> None:
        self.capacity, self.keep = capacity_tokens, keep
        self.lengths: dict[Key, int] = {}
        self._drafts_from: dict[Key, int] = {}
        """Where the drafts of the last forward began: what a tree verdict compacts from."""

    @property
    def used(self) -> int:
        return sum(self.lengths.values())

    def valid(self, rows: Rows, span: Span) -> float:
        """Up to which length the cache that these rows need is valid."""
        first = span.first
        if first == span.last or not self.keep:
            return INF
        key = rows.session, first
        if rows.keep is not None and key in self._drafts_from:
            return self._drafts_from[key] + len(rows.keep)
        return self.lengths.get(key, 0)

    def beyond(self, rows: Rows, span: Span, length: int) -> int:
        """Tokens cached beyond `length`: what a question that starts there truncates."""
        return max(0, self.lengths.get((rows.session, span.first), 0) - length)

    def started(self, rows: Rows, span: Span) -> None:
        """Rows are about to run: until they are done only `start` is sure."""
        if span.first < span.last:
            key, start, lengths = (rows.session, span.first), rows.start, self.lengths
            lengths.pop(key, None)  # to the end: the order is that of use
            lengths[key] = start
            self._drafts_from[key] = start + rows.n - rows.check

    def finished(self, rows: Rows, span: Span, rejected: int) -> None:
        if span.first < span.last and self.keep:
            self.lengths[rows.session, span.first] = rows.start + rows.n - rejected

    def idle(self, busy: Iterable[str]) -> list[Key]:
        """Caches of sessions that wait for nothing here, the longest unused first."""
        waiting = set(busy)
        return [key for key in self.lengths if key[0] not in waiting]

    def evict(self, key: Key) -> None:
        self.lengths.pop(key, None)
        self._drafts_from.pop(key, None)

    def forget(self, session: str) -> list[Key]:
        """Strikes out a session; returns the caches it had."""
        gone = [key for key in self.lengths if key[0] == session]
        for key in gone:
            self.evict(key)
        return gone
