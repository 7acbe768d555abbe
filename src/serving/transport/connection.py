"""The server's table of connected hosts, and the path of a received frame: parse, check, store tensors, deliver."""

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
    """The tensors of one remote host in this host's store; above `capacity_nbytes` that host's oldest are discarded."""

    def __init__(self, tensor_store: TensorSource | None, capacity_nbytes: int) -> None:
        self._tensor_store, self._capacity_nbytes = tensor_store, capacity_nbytes
        self._held: dict[str, tuple[TensorRef, int]] = {}
        self._nbytes = 0

    def add(self, packed: list[tuple[TensorRef, pb.Tensor]]) -> None:
        """Raises ProtocolError for an invalid tensor; then none is kept."""
        if self._tensor_store is None:
            return
        for ref, tensor in [(ref, _unpack(ref, wire)) for ref, wire in packed]:
            _, old_nbytes = self._held.pop(ref.id, (ref, 0))
            self._held[ref.id] = ref, tensor.nbytes
            self._nbytes += tensor.nbytes - old_nbytes
            self._tensor_store.add(ref, tensor)
        while self._nbytes > self._capacity_nbytes:
            self._remove(next(iter(self._held)))

    def discard(self) -> None:
        """Discards all tensors of the host."""
        for tensor_id in list(self._held):
            self._remove(tensor_id)

    def _remove(self, tensor_id: str) -> None:
        ref, nbytes = self._held.pop(tensor_id)
        self._nbytes -= nbytes
        if self._tensor_store is not None:
            self._tensor_store.discard((ref,))


def _unpack(ref: TensorRef, wire: pb.Tensor) -> "torch.Tensor":
    tensor = tensors.unpack(ref.id, wire)
    if tensor.dim() == 1 and not (bool((tensor >= 0).all()) and float(tensor.double().sum()) > 0):
        raise invalid(f"{ref.id}: probabilities must be 0 or more, at least one above 0.")
    return tensor


@dataclass(eq=False)
class Connection:
    """One connected host."""

    hello: Hello
    peer_host: str
    """The address it connects from, without the port."""
    outbox: Outbox
    received_tensors: ReceivedTensors

    def is_restart_of(self, older: "Connection") -> bool:
        """True if both have a node in common but are different processes."""
        shared = set(self.hello.nodes) & set(older.hello.nodes)
        return bool(shared) and self.hello.boot_id != older.hello.boot_id


class ConnectionTable:
    """At most `limits.hosts` connections; a node belongs to one of them at a time."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.connections: list[Connection] = []
        self.owners = SessionOwners(limits.sessions_per_node, limits.hosts)
        self._by_node: dict[str, Connection] = {}
        self._boot_ids: dict[str, str] = {}

    def replaced_by(self, connection: Connection, authenticated: bool) -> list[Connection]:
        """Returns the older connections of the new host's nodes, for example of a device that reconnects before its old
        stream was found dead.

        Args:
            authenticated: True if the new host sent the token. Otherwise it replaces only hosts at its own address.

        Raises ProtocolError: ALREADY_EXISTS if it may not replace them, RESOURCE_EXHAUSTED for too many hosts.
        """
        found = {id(other): other for node in connection.hello.nodes if (other := self._by_node.get(node))}
        for other in found.values():
            if not authenticated and other.peer_host != connection.peer_host:
                raise ProtocolError(
                    "ALREADY_EXISTS",
                    f"hello.nodes: {other.hello.nodes[0]} is connected from another address. Give each device a name "
                    "of its own, or set a token on this server: with the token a device that restarts is replaced.",
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
        """Returns True if the connection was in the table."""
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
    """Checks the frames of one remote host and delivers their messages.

    Args:
        owners: session owners to check against; None: no sessions are opened here.
        trusted: True if the remote host may send messages about every session.
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
        """Returns when the sink has taken the message. Raises ProtocolError for anything out of bounds."""
        frame = errors.parse_frame(data)
        match frame.WhichOneof("kind"):
            case "envelope":
                await self._handle_envelope(frame.envelope)
            case "goodbye":
                return  # the other side ends the stream
            case _:
                raise invalid("frame: after the Hello come Envelopes and a Goodbye.")

    async def _handle_envelope(self, wire: pb.Envelope) -> None:
        if wire.sender not in self._remote_nodes:
            raise invalid("envelope.sender: not a node of your Hello.")
        if wire.to not in self._local_nodes:
            raise invalid("envelope.to: that node is not on this host.")
        message, packed = self._decoder.message(wire)
        if self._owners is not None and self._trusted:
            self._owners.record_trusted(wire.to, message)
        elif self._owners is not None:
            admitted, releases = self._owners.admit(self._remote_nodes, wire.to, message)
            for node, release in releases:
                await self._sink.receive(wire.sender, node, release)
            if not admitted:
                return
        self._received_tensors.add(packed)
        await self._sink.receive(wire.sender, wire.to, message)
