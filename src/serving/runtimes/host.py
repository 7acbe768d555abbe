"""A host: a process with some of the nodes, its driver, and transports to the processes of the other nodes."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from serving.deployment.topology import Topology
from serving.drivers.real_time import RealTimeDriver
from serving.messages import CacheMiss, Message, PeerLost, PeerRestored, Request
from serving.transport.limits import Limits, PeerExpectations, ProtocolError
from serving.transport.security import Security

if TYPE_CHECKING:
    from serving.engines.torch.tensor_store import TensorStore
    from serving.transport.connection import SessionOwners

log = logging.getLogger(__name__)


class Transport(Protocol):
    """A transport client or server, as a host uses it."""

    def send(self, sender: str, to: str, message: Message) -> None: ...

    async def stop(self, grace_s: float) -> None: ...


class NodeHost:
    """The nodes `node_names` of a topology. Remote nodes count as lost until their transport reports them.

    Before `start` it only keeps track of the reachable nodes. Token ids beyond `vocabulary`, and hidden states that are
    not `hidden_size` wide, are refused on arrival; None: any.
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
        hidden_size: int | None = None,
    ) -> None:
        self.topology, self.node_names = topology, tuple(node_names)
        self._tensor_store, self._security, self._limits, self._digest = tensor_store, security, limits, digest
        peers = frozenset(topology.workers) if topology.setup.hardware.tiers else frozenset[str]()
        self._expectations = PeerExpectations(vocabulary, hidden_size, hops=topology.hops or None, trusted_nodes=peers)
        self._session_ownership: SessionOwners | None = None
        """The peer that owns each session; set by `listen`."""
        self._transports: list[Transport] = []
        self._transport_to: dict[str, Transport] = {}
        self._driver: RealTimeDriver | None = None
        self._started = asyncio.Event()
        self.reachable: set[str] = set()
        self._reachability_changed = asyncio.Event()

    # Connections.

    async def listen(self, address: str) -> str:
        """Starts a server for the devices and the nodes of later tiers; returns its address."""
        from serving.transport.server import TransportServer

        server = TransportServer(
            self.node_names,
            self,
            self._tensor_store,
            address,
            security=self._security,
            limits=self._limits,
            config_digest=self._digest,
            expectations=self._expectations,
        )
        self._transports.append(server)
        self._session_ownership = server.owners
        peers = (*self.topology.devices, *self.topology.downstream_nodes(self.node_names[0]))
        self._transport_to |= dict.fromkeys(peers, server)
        return await server.start()

    async def connect(self, addresses: Mapping[str, str]) -> None:
        """Connects to remote nodes by their `addresses`, and retries while they are unreachable.

        Raises ValueError if one refuses this host, because a retry would not help.
        """
        from serving.transport.client import TransportClient

        for address in dict.fromkeys(addresses.values()):
            client = TransportClient(
                self.node_names,
                self,
                self._tensor_store,
                address,
                security=self._security,
                limits=self._limits,
                config_digest=self._digest,
                expectations=self._expectations,
                owners=self._session_ownership,
            )
            self._transports.append(client)
            nodes = [node for node, its_address in addresses.items() if its_address == address]
            self._transport_to |= dict.fromkeys(nodes, client)
            try:
                await client.start()
            except ProtocolError as error:
                raise ValueError(f"{' and '.join(nodes)} at {address} refuses {self.node_names[0]}: {error}") from error

    async def wait_until_reachable(self, nodes: Iterable[str], timeout_s: float | None = None) -> None:
        """Returns when all of `nodes` are reachable. Raises ConnectionError if some are not after `timeout_s`."""
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
        """Delivers arriving messages to the driver from now on."""
        self._driver = driver
        for node, transport in self._transport_to.items():
            driver.add_remote(node, partial(self._send, transport))
        self._started.set()
        self._post_to_all(PeerLost(node) for node in self._transport_to if node not in self.reachable)

    def _send(self, transport: Transport, sender: str, to: str, message: Message) -> None:
        """A message that cannot be encoded does not stop the driver; the sender of a request gets a CacheMiss."""
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
        elif transport := self._transport_to.get(request.reply_to):
            transport.send(sender, request.reply_to, miss)

    async def close(self, grace_s: float = 1.0) -> None:
        await asyncio.gather(*(transport.stop(grace_s) for transport in self._transports))

    # Called by transports: `serving.transport.stream.MessageSink`.

    async def receive(self, sender: str, to: str, message: Message) -> None:
        """Messages wait for `start`, which blocks their stream. Messages of unknown senders are dropped."""
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
        if driver := self._driver:
            for event in events:
                for name in self.node_names:
                    driver.post(driver.now(), name, event)
