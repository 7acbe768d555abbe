"""Tells nodes that a device's link is broken, and that it is back, as its schedule of outages says."""

from collections.abc import Callable, Iterator, Sequence

from serving.deployment.topology import Cast
from serving.messages import Command, Event, Joined, Lost, Message, Outcome, Work

Post = Callable[[float, str, Lost | Joined], None]
"""(at, node, event)"""


class Breaks:
    """An observer that posts a device's next break when the last is over, until `over()`: a schedule may be endless.

    `names` are the nodes to tell: those of this process.
    """

    def __init__(self, cast: Cast, names: Sequence[str], post: Post, over: Callable[[], bool]) -> None:
        self._cast, self._post, self._over = cast, post, over
        self._told = frozenset(names)
        self._breaks: dict[str, Iterator[tuple[float, float]]] = {
            name: cast.link(name).breaks(cast.stream(name)) for name in cast.devices if cast.workers
        }
        self._clue = {name: self._pairs(name)[0] for name in self._breaks if self._pairs(name)}
        """Per device the (node, peer) whose Joined says that its break is over."""

    @property
    def expected(self) -> bool:
        """Does any link of the cast ever break?"""
        return any(self._cast.link(name).outages for name in self._clue)

    def begin(self) -> None:
        for device in self._clue:
            self._next(device)

    def handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        if isinstance(event, Joined):
            for device in (node, event.peer):
                if self._clue.get(device) == (node, event.peer):
                    self._next(device)

    def ran(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None: ...

    def sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None: ...

    def _next(self, device: str) -> None:
        window = None if self._over() else next(self._breaks[device], None)
        if window:
            for node, peer in self._pairs(device):
                self._post(window[0], node, Lost(peer))
                self._post(window[1], node, Joined(peer))

    def _pairs(self, device: str) -> list[tuple[str, str]]:
        """(node, the peer that it loses) on both sides of a device's link."""
        both = [pair for worker in self._cast.workers for pair in ((device, worker), (worker, device))]
        return [pair for pair in both if pair[0] in self._told]
