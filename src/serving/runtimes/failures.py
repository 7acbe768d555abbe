"""Lets nodes of tiers fail and start again with nothing of what they knew, as their schedules of outages say.

Tells nodes that a device's link is broken, and that it is back, as its schedule of outages says.

When each node of a testbed's tiers fails and is back, in order, on the clock of a run.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Protocol

from serving.deployment.topology import Cast
from serving.drivers.simulator import Chip
from serving.messages import Command, Event, Joined, Lost, Message, Node, Outcome, Work
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
