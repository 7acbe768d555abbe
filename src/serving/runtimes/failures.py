"""Lets nodes of tiers fail and start again with nothing of what they knew, as their schedules of outages say."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol

from serving.deployment.topology import Cast
from serving.drivers.simulator import Chip
from serving.messages import Event, Joined, Lost, Node
from serving.network.outages import Window

Born = Callable[[str, float], None]
"""(node, now): it is made anew."""


class Stage(Protocol):
    """What a driver must be able to do for it."""

    def add(self, name: str, node: Node, chip: Chip) -> None: ...

    def crash(self, name: str) -> None:
        """The node is gone, with all that was meant for it."""
        ...

    def call(self, at: float, do: Callable[[], None]) -> None: ...

    def post(self, at: float, node: str, event: Event) -> None: ...


class Failures:
    """Posts a node's next failure when it is back from the last, until `over()`: a schedule may be endless.

    Its peers, devices and nodes of the other tiers, hear that it is lost when they notice, or when it is back, if that
    is earlier: connections of a process that starts again are seen to break.
    """

    def __init__(
        self, cast: Cast, stage: Stage, chip: Callable[[str], Chip], over: Callable[[], bool], born: Iterable[Born] = ()
    ) -> None:
        self._cast, self._stage, self._chip, self._over, self._born = cast, stage, chip, over, tuple(born)
        self._down: set[str] = set()
        self._windows: dict[str, Iterator[Window]] = {name: cast.failures(name) for name in cast.workers}

    def begin(self) -> None:
        for name in self._windows:
            self._next(name)

    def _next(self, name: str) -> None:
        window = None if self._over() else next(self._windows[name], None)
        if window:
            self._stage.call(window[0], partial(self._fail, name, window))

    def _fail(self, name: str, window: Window) -> None:
        down_s, up_s = window
        self._down.add(name)
        self._stage.crash(name)
        noticed_s = down_s + self._cast.tier(self._cast.tier_of[name]).detect_ms / 1e3
        for peer in self._peers(name):
            self._stage.post(min(noticed_s, up_s), peer, Lost(name))
        self._stage.call(up_s, partial(self._back, name, up_s))

    def _back(self, name: str, now: float) -> None:
        self._down.discard(name)
        self._stage.add(name, self._cast.node(name), self._chip(name))
        for born in self._born:
            born(name, now)
        for peer in self._peers(name):
            if peer in self._down:
                self._stage.post(now, name, Lost(peer))
            else:
                self._stage.post(now, peer, Joined(name))
        self._next(name)

    def _peers(self, name: str) -> Iterator[str]:
        own = self._cast.tier_of[name]
        yield from self._cast.devices
        yield from (node for node, tier in self._cast.tier_of.items() if tier != own)
