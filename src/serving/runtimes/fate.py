"""When each node of a testbed's tiers fails and is back, in order, on the clock of a run."""

from collections.abc import Iterator
from heapq import heappop, heappush

from serving.deployment.topology import Cast


class Fate:
    """Failures and returns by turns for every node that has a schedule of outages."""

    def __init__(self, cast: Cast) -> None:
        self._moments: dict[str, Iterator[float]] = {}
        self._next: list[tuple[float, str]] = []
        for name in cast.workers:
            windows = cast.failures(name)
            self._moments[name] = (moment for window in windows for moment in window)
            self._push(name)

    def due(self, now: float) -> list[str]:
        """The nodes whose turn has come."""
        found = []
        while self._next and self._next[0][0] <= now:
            _, name = heappop(self._next)
            found.append(name)
            self._push(name)
        return found

    def rest_s(self, now: float) -> float | None:
        """How long nothing is due; None: for ever."""
        return max(0.0, self._next[0][0] - now) if self._next else None

    def _push(self, name: str) -> None:
        moment = next(self._moments[name], None)
        if moment is not None:
            heappush(self._next, (moment, name))
