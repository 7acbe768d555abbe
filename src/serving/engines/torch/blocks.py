"""Which blocks of a pool are free, and where a session's next ones should lie."""

from typing import NamedTuple


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
