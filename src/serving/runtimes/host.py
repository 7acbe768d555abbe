"""A process that holds nodes: a live driver, and transports to the processes that hold the others."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from serving.deployment.topology import Topology
from serving.drivers.real_time import RealTimeDriver
from serving.messages import CacheMiss, Message, PeerLost, PeerRestored, Request
from serving.transport.limits import Limits
from serving.transport.security import Security
from serving.transport.session_ownership import PeerExpectations

if TYPE_CHECKING:
    from serving.engines.torch.tensor_store import TensorStore
    from serving.transport.session_ownership import SessionOwners

log = logging.getLogger(__name__)


class Transport(Protocol):
    """A dialler or a listener, as far as a host uses it."""

    def send(self, sender: str, to: str, message: Message) -> None: ...

    async def stop(self, grace_s: float) -> None: ...


class NodeHost:
    """The nodes `node_names` of a cast; remote ones are lost until their transport has said otherwise.

    Until `start` gives it a driver it only keeps account of who can be reached. With a `vocabulary` token ids beyond it
    are refused on arrival.
    """

    def __init__(
        self,
        topology: Topology,
        node_names: Sequence[str],
        tensor_store: "TensorStore | None",
        security: Security,
        limits: Limits,
        digest: str,
        vocabulary: int | None = None,
    ) -> None:
        self.topology, self.node_names = topology, tuple(node_names)
        self._tensor_store, self._security, self._limits, self._digest = tensor_store, security, limits, digest
        peers = frozenset(topology.workers) if topology.setup.hardware.tiers else frozenset[str]()
        self._expectations = PeerExpectations(vocabulary, hops=topology.hops or None, trusted_nodes=peers)
        self._session_ownership: SessionOwners | None = None
        """Of the sessions here, once it listens."""
        self._transports: list[Transport] = []
        self._transport_to: dict[str, Transport] = {}
        self._driver: RealTimeDriver | None = None
        self._started = asyncio.Event()
        self.reachable: set[str] = set()
        self._reachability_changed = asyncio.Event()

    # Towards others.

    async def listen(self, address: str) -> str:
        """Where others may dial this host: every device, and the nodes of tiers behind its own."""
        from serving.transport.server import TransportServer

        listener = TransportServer(
            self.node_names, self, self._tensor_store, address, security=self._security, limits=self._limits, config_digest=self._digest,
            expectations=self._expectations,
        )  # fmt: skip
        self._transports.append(listener)
        self._session_ownership = listener.owners
        self._transport_to |= dict.fromkeys(
            (*self.topology.devices, *self.topology.downstream_nodes(self.node_names[0])), listener
        )
        return await listener.start()

    async def connect(self, addresses: Mapping[str, str]) -> None:
        """Reaches out to remote nodes, again and again; `addresses` says where each of them is.

        Raises ValueError where one refuses this host, which trying again would not mend.
        """
        from serving.transport.client import TransportClient
        from serving.transport.errors import ProtocolError

        for address in dict.fromkeys(addresses.values()):
            dialler = TransportClient(
                self.node_names, self, self._tensor_store, address, security=self._security, limits=self._limits,
                config_digest=self._digest, expectations=self._expectations, owners=self._session_ownership,
            )  # fmt: skip
            self._transports.append(dialler)
            there = [node for node, where in addresses.items() if where == address]
            self._transport_to |= dict.fromkeys(there, dialler)
            try:
                await dialler.start()
            except ProtocolError as refused:
                raise ValueError(
                    f"{' and '.join(there)} at {address} refuses {self.node_names[0]}: {refused}"
                ) from refused

    async def wait_until_reachable(self, nodes: Iterable[str], timeout_s: float | None = None) -> None:
        """Returns once all of `nodes` can be reached; raises ConnectionError when some cannot in that time, if there is
        one.
        """
        wanted = frozenset(nodes)
        try:
            async with asyncio.timeout(timeout_s):
                while not wanted <= self.reachable:
                    self._reachability_changed.clear()
                    await self._reachability_changed.wait()
        except TimeoutError:
            left = ", ".join(sorted(wanted - self.reachable))
            raise ConnectionError(f"{left} cannot be reached, after {timeout_s} s of trying") from None

    def start(self, driver: RealTimeDriver) -> None:
        """From here on the driver hears what arrives."""
        self._driver = driver
        for node, transport in self._transport_to.items():
            driver.add_remote(node, partial(self._send, transport))
        self._started.set()
        self._post_to_all(PeerLost(node) for node in self._transport_to if node not in self.reachable)

    def _send(self, transport: Transport, sender: str, to: str, message: Message) -> None:
        """What cannot travel costs an attempt, not the driver: whoever asked hears that it missed."""
        try:
            transport.send(sender, to, message)
        except (KeyError, ValueError) as problem:
            log.warning("from %s to %s: %s", sender, to, problem)
            if isinstance(message, Request):
                self._report_miss(sender, message)

    def _report_miss(self, sender: str, request: Request) -> None:
        assert self._driver
        miss = CacheMiss(request.slice.session, request.attempt, sender)
        if request.reply_to in self.node_names:
            self._driver.receive(request.reply_to, miss)
        elif carrier := self._transport_to.get(request.reply_to):
            carrier.send(sender, request.reply_to, miss)

    async def close(self, grace_s: float = 1.0) -> None:
        await asyncio.gather(*(transport.stop(grace_s) for transport in self._transports))

    # What transports say: `serving.transport.stream.MessageSink`.

    async def receive(self, sender: str, to: str, message: Message) -> None:
        """What comes before `start` waits for it, and holds up its stream; strangers are not heard."""
        await self._started.wait()
        if self._driver and sender in self._transport_to:
            await self._driver.wait_for_capacity()
            self._driver.receive(to, message)

    def peers_lost(self, nodes: tuple[str, ...]) -> None:
        known = self._transport_to.keys() & nodes
        self.reachable.difference_update(known)
        self._post_to_all(PeerLost(node) for node in nodes if node in known)

    def peers_restored(self, nodes: tuple[str, ...]) -> None:
        known = self._transport_to.keys() & nodes
        self.reachable.update(known)
        self._post_to_all(PeerRestored(node) for node in nodes if node in known)

    def _post_to_all(self, events: Iterable[PeerLost | PeerRestored]) -> None:
        self._reachability_changed.set()
        if live := self._driver:
            for event in events:
                for name in self.node_names:
                    live.post(live.now(), name, event)
