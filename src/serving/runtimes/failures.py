"""Injects failures by schedules of outages: nodes of tiers crash and restart, links of devices break."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Protocol

from serving.deployment.topology import Topology
from serving.drivers.simulator import ComputeResource
from serving.messages import Command, Event, Message, Node, Outcome, PeerLost, PeerRestored, Work
from serving.network.outages import OutageInterval

NodeCreatedHook = Callable[[str, float], None]
"""(node, now): called when a node restarts."""


class CrashDriver(Protocol):
    """A driver whose nodes can crash."""

    def add(self, name: str, node: Node, compute: ComputeResource) -> None: ...

    def crash(self, name: str) -> None:
        """Removes the node and all events and messages for it."""
        ...

    def call_at(self, at: float, callback: Callable[[], None]) -> None: ...

    def post(self, at: float, node: str, event: Event) -> None: ...


class NodeFailureInjector:
    """Crashes and restarts nodes until `is_over()`, one scheduled outage at a time: a schedule may be endless.

    The node's peers, devices and nodes of other tiers, get PeerLost after the detection time, or at the restart if that
    is earlier: a restart breaks the connections visibly.
    """

    def __init__(
        self,
        topology: Topology,
        driver: CrashDriver,
        make_chip: Callable[[str], ComputeResource],
        is_over: Callable[[], bool],
        on_node_created: Iterable[NodeCreatedHook] = (),
    ) -> None:
        self._topology, self._driver, self._make_chip, self._is_over = topology, driver, make_chip, is_over
        self._on_node_created = tuple(on_node_created)
        self._down: set[str] = set()
        self._outages: dict[str, Iterator[OutageInterval]] = {
            name: topology.node_outages(name) for name in topology.workers
        }

    def start(self) -> None:
        for name in self._outages:
            self._schedule_next(name)

    def _schedule_next(self, name: str) -> None:
        interval = None if self._is_over() else next(self._outages[name], None)
        if interval:
            self._driver.call_at(interval[0], partial(self._fail, name, interval))

    def _fail(self, name: str, interval: OutageInterval) -> None:
        down_s, up_s = interval
        self._down.add(name)
        self._driver.crash(name)
        noticed_s = down_s + self._topology.tier(self._topology.tier_of[name]).detect_ms / 1e3
        for peer in self._peers(name):
            self._driver.post(min(noticed_s, up_s), peer, PeerLost(name))
        self._driver.call_at(up_s, partial(self._restore, name, up_s))

    def _restore(self, name: str, now: float) -> None:
        self._down.discard(name)
        self._driver.add(name, self._topology.create_node(name), self._make_chip(name))
        for hook in self._on_node_created:
            hook(name, now)
        for peer in self._peers(name):
            if peer in self._down:
                self._driver.post(now, name, PeerLost(peer))
            else:
                self._driver.post(now, peer, PeerRestored(name))
        self._schedule_next(name)

    def _peers(self, name: str) -> Iterator[str]:
        own = self._topology.tier_of[name]
        yield from self._topology.devices
        yield from (node for node, tier in self._topology.tier_of.items() if tier != own)


PostPeerEvent = Callable[[float, str, PeerLost | PeerRestored], None]
"""(time in s, node, event)"""


class LinkOutageInjector:
    """Breaks links until `is_over()`: posts PeerLost and PeerRestored to the nodes `node_names` of this process.

    It is an observer: it posts a device's next outage when the last is over, because a schedule may be endless.
    """

    def __init__(
        self, topology: Topology, node_names: Sequence[str], post: PostPeerEvent, is_over: Callable[[], bool]
    ) -> None:
        self._topology, self._post, self._is_over = topology, post, is_over
        self._local_nodes = frozenset(node_names)
        self._outages: dict[str, Iterator[tuple[float, float]]] = {
            name: topology.device_link(name).disconnections(topology.link_stream(name))
            for name in topology.devices
            if topology.workers
        }
        self._restore_event_of = {name: pair for name in self._outages if (pair := next(self._pairs(name), None))}
        """Per device the (node, peer) whose PeerRestored ends the outage."""
        self._last_outages: dict[str, OutageInterval] = {}
        """The outage of each device's link that is due or goes on."""

    @property
    def has_outages(self) -> bool:
        """True if any link has outages."""
        return any(self._topology.device_link(name).outages for name in self._restore_event_of)

    def start(self) -> None:
        for device in self._restore_event_of:
            self._schedule_next(device)

    def node_created(self, node: str, now: float) -> None:
        """Tells a node that restarted of the outages of links: what was posted to it before it failed is lost."""
        for device, (begin_s, end_s) in self._last_outages.items():
            if now < end_s:
                peers = [peer for own, peer in self._pairs(device) if own == node]
                self._post_outage([(node, peer) for peer in peers], (max(now, begin_s), end_s))

    def event_handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:  # noqa: ARG002
        if isinstance(event, PeerRestored) and event.cause == "link":
            for device in (node, event.peer):
                if self._restore_event_of.get(device) == (node, event.peer):
                    self._schedule_next(device)

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None: ...

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None: ...

    def _schedule_next(self, device: str) -> None:
        interval = None if self._is_over() else next(self._outages[device], None)
        if interval:
            self._last_outages[device] = interval
            self._post_outage(self._pairs(device), interval)

    def _post_outage(self, pairs: Iterable[tuple[str, str]], interval: OutageInterval) -> None:
        for node, peer in pairs:
            self._post(interval[0], node, PeerLost(peer, "link"))
            self._post(interval[1], node, PeerRestored(peer, "link"))

    def _pairs(self, device: str) -> Iterator[tuple[str, str]]:
        """(node, the peer that it loses) on both ends of a device's link."""
        for worker in self._topology.workers:
            for pair in ((device, worker), (worker, device)):
                if pair[0] in self._local_nodes:
                    yield pair


class FailureSchedule:
    """The times at which nodes alternately fail and restart, in order over all nodes."""

    def __init__(self, topology: Topology) -> None:
        self._event_times: dict[str, Iterator[float]] = {}
        self._queue: list[tuple[float, str]] = []
        for name in topology.workers:
            intervals = topology.node_outages(name)
            self._event_times[name] = (moment for interval in intervals for moment in interval)
            self._push(name)

    def due(self, now: float) -> list[str]:
        """The nodes that fail or restart by `now`, each once per event."""
        found = []
        while self._queue and self._queue[0][0] <= now:
            _, name = heappop(self._queue)
            found.append(name)
            self._push(name)
        return found

    def next_in_s(self, now: float) -> float | None:
        """Seconds until the next event; None: there is none."""
        return max(0.0, self._queue[0][0] - now) if self._queue else None

    def _push(self, name: str) -> None:
        moment = next(self._event_times[name], None)
        if moment is not None:
            heappush(self._queue, (moment, name))
