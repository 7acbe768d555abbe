"""A way over several links, as between nodes of distant tiers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from serving.network.rate import Direction

if TYPE_CHECKING:
    from serving.network.link import Link


class _Wire(Protocol):
    def arrive(self, nbytes: float, now: float) -> float: ...


class Relay:
    """A message queues for the sender's `own` wire; each of the `further` links, nobody's own, takes the time that a
    lone message takes at its mean rate. Messages keep their order.
    """

    def __init__(self, own: _Wire, further: Sequence[tuple["Link", Direction]]) -> None:
        self._own = own
        self._delay_s = sum(link.seconds(0, direction) for link, direction in further)
        self._nbyte_s = sum(link.seconds(1, direction) - link.seconds(0, direction) for link, direction in further)
        self._arrived_s = 0.0

    def arrive(self, nbytes: float, now: float) -> float:
        """When a message handed over at `now` arrives, infinite if never; calls come in order of `now`."""
        at_s = self._own.arrive(nbytes, now) + self._delay_s + nbytes * self._nbyte_s
        if at_s < float("inf"):
            self._arrived_s = at_s = max(at_s, self._arrived_s)
        return at_s
