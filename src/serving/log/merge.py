"""Journals of several processes as one.

1. Each journal's own order is kept: a process knows best what it saw when.
2. Between journals time decides, each plus its `offset_s`; of equal times the journal named first comes first.
3. A message is received after it was sent, though clocks or equal times say otherwise: a receiver that is less than
   `skew_s` ahead waits for its sender. Beyond that the message came from nobody who kept a journal.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from serving.log.entries import Entry, Handled, Ran, Sent, shifted
from serving.log.reader import header, read
from serving.messages import Message, Received

SKEW_S = 0.1


def merge(paths: Sequence[Path], skew_s: float = SKEW_S) -> Iterator[Entry]:
    """The entries of all journals in causal order, on the clock of those without an offset."""
    return merged([_shifted(path) for path in paths], skew_s)


def _shifted(path: Path) -> Iterator[Entry]:
    offset_s = header(path).offset_s
    return (shifted(entry, offset_s) for entry in read(path)) if offset_s else read(path)


def merged(streams: Iterable[Iterator[Entry]], skew_s: float = SKEW_S) -> Iterator[Entry]:
    """As `merge`, of entries whose times are on one clock already."""
    merger = _Merger(list(streams), skew_s)
    while merger.heads:
        yield merger.next()


class _Merger:
    def __init__(self, streams: list[Iterator[Entry]], skew_s: float) -> None:
        self._streams, self._skew_s = streams, skew_s
        self._under_way: Counter[tuple[str, Message]] = Counter()
        self.heads: list[tuple[float, int, Entry]] = []
        """(time, stream, entry): the next of each stream, the earliest first."""
        for number in range(len(streams)):
            self._advance(number)

    def next(self) -> Entry:
        _, number, entry = self._pick()
        if isinstance(entry, Sent):
            self._under_way[entry.to, entry.message] += 1
        elif isinstance(entry, Handled) and isinstance(entry.event, Received):
            self._arrived((entry.node, entry.event.message))
        self._advance(number)
        return entry

    def _pick(self) -> tuple[float, int, Entry]:
        """The earliest whose cause has been seen, among those within the skew of the earliest of all."""
        held: list[tuple[float, int, Entry]] = []
        while self.heads and not (held and self.heads[0][0] > held[0][0] + self._skew_s):
            head = heapq.heappop(self.heads)
            if self._has_cause(head[2]):
                break
            held.append(head)
        else:
            head = held.pop(0)
        for other in held:
            heapq.heappush(self.heads, other)
        return head

    def _has_cause(self, entry: Entry) -> bool:
        if isinstance(entry, Handled) and isinstance(entry.event, Received):
            return self._under_way[entry.node, entry.event.message] > 0
        return True

    def _arrived(self, key: tuple[str, Message]) -> None:
        self._under_way[key] -= 1
        if self._under_way[key] <= 0:
            del self._under_way[key]

    def _advance(self, number: int) -> None:
        entry = next(self._streams[number], None)
        if entry is not None:
            heapq.heappush(self.heads, (_time(entry), number, entry))


def _time(entry: Entry) -> float:
    """When its process saw it; of a piece of work that is not said: it follows what came before it."""
    match entry:
        case Ran():
            return float("-inf")
        case Sent():
            return entry.now_s
        case _:
            return entry.at_s
