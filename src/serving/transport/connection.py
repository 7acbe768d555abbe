"""The connected hosts of a listener: who is there, who replaces whom, and whose message goes where.

What one remote host says, from bytes to the ears: parsed, checked, its tensors stored, then heard.

The tensors that one remote host has in this host's store.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving.messages import TensorRef
from serving.transport import errors, tensors
from serving.transport import tandem_pb2 as pb
from serving.transport.decode import MessageDecoder
from serving.transport.errors import ProtocolError, invalid
from serving.transport.handshake import Hello
from serving.transport.limits import Limits
from serving.transport.session_ownership import SessionOwners
from serving.transport.stream import MessageSink, Outbox, TensorSource

if TYPE_CHECKING:
    import torch


class ReceivedTensors:
    """Bounded: beyond its share, a host's own oldest tensors go, so that one host cannot push out another's."""

    def __init__(self, tensor_store: TensorSource | None, capacity_nbytes: int) -> None:
        self._tensor_store, self._capacity_nbytes = tensor_store, capacity_nbytes
        self._held: dict[str, tuple[TensorRef, int]] = {}
        self._nbytes = 0

    def add(self, packed: list[tuple[TensorRef, pb.Tensor]]) -> None:
        """Raises ProtocolError for a tensor that cannot be; then none of them is kept."""
        if self._tensor_store is None:
            return
        for blob, tensor in [(blob, _unpack(blob, wire)) for blob, wire in packed]:
            _, old = self._held.pop(blob.id, (blob, 0))
            self._held[blob.id] = blob, tensor.nbytes
            self._nbytes += tensor.nbytes - old
            self._tensor_store.add(blob, tensor)
        while self._nbytes > self._capacity_nbytes:
            self._remove(next(iter(self._held)))

    def discard(self) -> None:
        """The host is gone for good."""
        for name in list(self._held):
            self._remove(name)

    def _remove(self, name: str) -> None:
        blob, nbytes = self._held.pop(name)
        self._nbytes -= nbytes
        if self._tensor_store is not None:
            self._tensor_store.discard((blob,))


def _unpack(ref: TensorRef, wire: pb.Tensor) -> "torch.Tensor":
    tensor = tensors.unpack(ref.id, wire)
    if tensor.dim() == 1 and not (bool((tensor >= 0).all()) and float(tensor.double().sum()) > 0):
        raise invalid(f"{ref.id}: a distribution must be of shares from 0, one of them above it.")
    return tensor


@dataclass(eq=False)
class Connection:
    """One connected host."""

    hello: Hello
    peer_host: str
    """Where it connects from, without the port."""
    outbox: Outbox
    received_tensors: ReceivedTensors

    def is_restart_of(self, older: "Connection") -> bool:
        """Is this a host of that one's name, but of another process?"""
        shared = set(self.hello.nodes) & set(older.hello.nodes)
        return bool(shared) and self.hello.boot_id != older.hello.boot_id


class ConnectionTable:
    """At most `limits.hosts` guests; a node lives with one of them at a time."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.connections: list[Connection] = []
        self.owners = SessionOwners(limits.sessions_per_node, limits.hosts)
        self._by_node: dict[str, Connection] = {}
        self._boot_ids: dict[str, str] = {}

    def replaced_by(self, connection: Connection, authenticated: bool) -> list[Connection]:
        """The hosts that a new one replaces, because it has nodes of theirs: a device that came back before its old
        stream was found dead.

        Args:
            proven: did the new host show the token? Else it replaces only what connects from the same place.

        Raises ProtocolError (ALREADY_EXISTS) when it may not, (RESOURCE_EXHAUSTED) when there are too many hosts.
        """
        found = {id(other): other for node in connection.hello.nodes if (other := self._by_node.get(node))}
        for other in found.values():
            if not authenticated and other.peer_host != connection.peer_host:
                raise ProtocolError(
                    "ALREADY_EXISTS",
                    f"hello.nodes: {other.hello.nodes[0]} is connected from another address. Give each device a name "
                    "of its own, or this server a token: whoever shows it may replace a device that restarts.",
                )
        if len(self.connections) - len(found) >= self._limits.hosts:
            raise ProtocolError("RESOURCE_EXHAUSTED", f"limits.hosts={self._limits.hosts} hosts are connected already.")
        return list(found.values())

    def add(self, connection: Connection) -> None:
        self.connections.append(connection)
        self.owners.reconnected(connection.hello.nodes)
        for node in connection.hello.nodes:
            self._by_node[node] = connection
            if self._boot_ids.pop(node, connection.hello.boot_id) != connection.hello.boot_id:
                self.owners.restarted((node,))

    def remove(self, connection: Connection) -> bool:
        """Was it still here?"""
        if connection not in self.connections:
            return False
        self.connections.remove(connection)
        self.owners.disconnected(connection.hello.nodes)
        for node in connection.hello.nodes:
            del self._by_node[node]
            self._boot_ids[node] = connection.hello.boot_id
        while len(self._boot_ids) > self._limits.hosts:
            del self._boot_ids[next(iter(self._boot_ids))]
        return True

    def find(self, node: str) -> Connection | None:
        return self._by_node.get(node)


class FrameReceiver:
    """
    Args:
        here, there: the nodes on either side.
        owners: whose session is whose; None: nobody here asks.
        trusted: may the other side speak of every session?
    """

    def __init__(
        self,
        sink: MessageSink,
        decoder: MessageDecoder,
        received_tensors: ReceivedTensors,
        local_nodes: tuple[str, ...],
        remote_nodes: tuple[str, ...],
        owners: SessionOwners | None,
        trusted: bool,
    ) -> None:
        self._sink, self._decoder, self._received_tensors = sink, decoder, received_tensors
        self._owners, self._trusted = owners, trusted
        self._local_nodes, self._remote_nodes = frozenset(local_nodes), frozenset(remote_nodes)

    async def receive(self, data: bytes) -> None:
        """Returns when the driver has taken it. Raises ProtocolError for anything out of bounds."""
        frame = errors.parse_frame(data)
        match frame.WhichOneof("kind"):
            case "envelope":
                await self._handle_envelope(frame.envelope)
            case "goodbye":
                return  # the stream ends by itself
            case _:
                raise invalid("frame: after the Hello come Envelopes and a Goodbye.")

    async def _handle_envelope(self, wire: pb.Envelope) -> None:
        if wire.sender not in self._remote_nodes:
            raise invalid("envelope.sender: it is not one of the nodes of your Hello.")
        if wire.to not in self._local_nodes:
            raise invalid("envelope.to: that node does not live here.")
        message, carried = self._decoder.message(wire)
        if self._owners is not None and self._trusted:
            self._owners.record_trusted(wire.to, message)
        elif self._owners is not None:
            wanted, before = self._owners.admit(self._remote_nodes, wire.to, message)
            for node, release in before:
                await self._sink.receive(wire.sender, node, release)
            if not wanted:
                return
        self._received_tensors.add(carried)
        await self._sink.receive(wire.sender, wire.to, message)
