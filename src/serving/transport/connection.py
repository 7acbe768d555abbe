"""The server's table of connected hosts, the owners of their sessions, and the path of a received frame: decode, check,
store tensors, deliver.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from serving.messages import CacheMiss, LoadReport, Message, Release, Request, TensorRef, session_of
from serving.transport import tensors
from serving.transport.frame import Envelope, FrameDecoder, Goodbye, Hello, ReceivedTensor
from serving.transport.limits import Limits, ProtocolError, invalid
from serving.transport.stream import MessageSink, Outbox, TensorSource
from serving.transport.tensors import PackedTensor

if TYPE_CHECKING:
    import torch


class ReceivedTensors:
    """The tensors of one remote host in this host's store; above `capacity_nbytes` that host's oldest are discarded.

    What the store no longer holds, because the engine used it, is counted until the capacity is reached; then it is
    looked for, again after each eighth of the capacity that is received.
    """

    def __init__(self, tensor_store: TensorSource | None, capacity_nbytes: int) -> None:
        self._tensor_store, self._capacity_nbytes = tensor_store, capacity_nbytes
        self._held: dict[str, tuple[TensorRef, int]] = {}
        self._nbytes = self._unchecked_nbytes = 0

    def add(self, received: list[ReceivedTensor]) -> None:
        """Raises ProtocolError for an invalid tensor; then none is kept."""
        if self._tensor_store is None:
            return
        for ref, tensor in [(ref, _unpack(ref, packed)) for ref, packed in received]:
            _, old_nbytes = self._held.pop(ref.id, (ref, 0))
            nbytes = self._tensor_store.add(ref, tensor)
            self._held[ref.id] = ref, nbytes
            self._nbytes += nbytes - old_nbytes
            self._unchecked_nbytes += nbytes
        if self._nbytes > self._capacity_nbytes and 8 * self._unchecked_nbytes >= self._capacity_nbytes:
            self._forget_discarded(self._tensor_store)
        while self._nbytes > self._capacity_nbytes:
            self._remove(next(iter(self._held)))

    def _forget_discarded(self, tensor_store: TensorSource) -> None:
        self._held = {name: held for name, held in self._held.items() if tensor_store.holds(held[0])}
        self._nbytes, self._unchecked_nbytes = sum(nbytes for _, nbytes in self._held.values()), 0

    def discard(self) -> None:
        """Discards all tensors of the host."""
        for tensor_id in list(self._held):
            self._remove(tensor_id)

    def _remove(self, tensor_id: str) -> None:
        ref, nbytes = self._held.pop(tensor_id)
        self._nbytes -= nbytes
        if self._tensor_store is not None:
            self._tensor_store.discard((ref,))


def _unpack(ref: TensorRef, packed: PackedTensor) -> "torch.Tensor":
    tensor = tensors.unpack(ref.id, packed)
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


@dataclass
class SessionOwnership:
    """The node that opened a session, and the local nodes that know the session."""

    owner: str
    notified_nodes: set[str] = field(default_factory=set)
    attempt: int = 0
    """Of the last request."""


@dataclass(frozen=True)
class EvictedSession:
    """A session that is released on all its local nodes in its owner's name."""

    session: str
    owner: str
    nodes: tuple[str, ...]
    attempt: int
    """The owner's last one, for which it may await an answer."""


class SessionOwners:
    """Above `max_sessions` open sessions of one owner, its least recently used one is released in its name.

    A disconnected owner keeps its sessions until it restarts, so that no other host can take them over; the last
    `max_disconnected` such owners are kept.
    """

    def __init__(self, max_sessions: int, max_disconnected: int) -> None:
        self._max_sessions, self._max_disconnected = max_sessions, max_disconnected
        self._by_session: dict[str, SessionOwnership] = {}
        self._by_owner: dict[str, dict[str, None]] = {}
        self._disconnected: dict[str, None] = {}

    @property
    def num_sessions(self) -> int:
        return len(self._by_session)

    def admit(self, nodes: Iterable[str], to: str, message: Message) -> tuple[bool, EvictedSession | None]:
        """Returns True if `message` may be delivered, and the session to release before it.

        A release of a session that the sender did not open here is not delivered. Raises ProtocolError for a session
        that another host opened.
        """
        if isinstance(message, LoadReport):
            return True, None
        session = session_of(message)
        ownership = self._by_session.get(session)
        if ownership and ownership.owner not in nodes:
            raise invalid(f"session: {session!r} was opened by another host.")
        if isinstance(message, Release):
            return self._release(session, ownership, to), None
        if not isinstance(message, Request):
            return True, None
        if message.reply_to not in nodes:
            raise invalid(f"request.reply_to: {message.reply_to!r} is not a node of the sending host.")
        if ownership and message.reply_to != ownership.owner:
            raise invalid(f"request.reply_to: {message.reply_to!r} did not open {session!r}; {ownership.owner!r} did.")
        evicted = None if ownership else self._make_room(message.reply_to)
        self._claim(message, to)
        return True, evicted

    def record_trusted(self, to: str, message: Message) -> None:
        """Records a device's message that a trusted node of another tier forwarded, so that the device itself may
        release the session here.
        """
        if isinstance(message, Request):
            self._claim(message, to)
        elif isinstance(message, Release):
            self._release(message.session, self._by_session.get(message.session), to)

    def _make_room(self, owner: str) -> EvictedSession | None:
        opened = self._by_owner.get(owner, {})
        if len(opened) < self._max_sessions:
            return None
        session = next(iter(opened))
        evicted = self._by_session[session]
        self._remove(session)
        return EvictedSession(session, owner, tuple(sorted(evicted.notified_nodes)), evicted.attempt)

    def _claim(self, request: Request, to: str) -> None:
        session = request.slice.session
        ownership = self._by_session.setdefault(session, SessionOwnership(request.reply_to))
        ownership.notified_nodes.add(to)
        ownership.attempt = request.attempt
        opened = self._by_owner.setdefault(ownership.owner, {})
        opened.pop(session, None)
        opened[session] = None  # the last one used is the last one

    def _release(self, session: str, ownership: SessionOwnership | None, to: str) -> bool:
        if ownership is None or to not in ownership.notified_nodes:
            return False
        ownership.notified_nodes.discard(to)
        if not ownership.notified_nodes:
            self._remove(session)
        return True

    def _remove(self, session: str) -> None:
        owner = self._by_session.pop(session).owner
        opened = self._by_owner[owner]
        del opened[session]
        if not opened:
            del self._by_owner[owner]

    def disconnected(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._disconnected[node] = None
        while len(self._disconnected) > self._max_disconnected:
            self.restarted((next(iter(self._disconnected)),))

    def reconnected(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._disconnected.pop(node, None)

    def restarted(self, nodes: Iterable[str]) -> None:
        """Frees the sessions of restarted nodes, which have lost them."""
        for node in nodes:
            self._disconnected.pop(node, None)
            for session in list(self._by_owner.get(node, ())):
                self._remove(session)


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
        send: sends (sender, receiver, message) to the remote host.
    """

    def __init__(
        self,
        sink: MessageSink,
        decoder: FrameDecoder,
        received_tensors: ReceivedTensors,
        local_nodes: tuple[str, ...],
        remote_nodes: tuple[str, ...],
        owners: SessionOwners | None,
        trusted: bool,
        send: Callable[[str, str, Message], None],
    ) -> None:
        self._sink, self._decoder, self._received_tensors = sink, decoder, received_tensors
        self._owners, self._trusted, self._send = owners, trusted, send
        self._local_nodes, self._remote_nodes = frozenset(local_nodes), frozenset(remote_nodes)

    async def receive(self, data: bytes) -> None:
        """Returns when the sink has taken the message. Raises ProtocolError for anything out of bounds."""
        frame, received = self._decoder.decode(data)
        if isinstance(frame, Envelope):
            await self._handle_envelope(frame, received)
        elif not isinstance(frame, Goodbye):  # after a Goodbye the other side ends the stream
            raise invalid("frame: after the Hello come Envelopes and a Goodbye.")

    async def _handle_envelope(self, envelope: Envelope, received: list[ReceivedTensor]) -> None:
        sender, to, message = envelope.sender, envelope.to, envelope.message
        if sender not in self._remote_nodes:
            raise invalid("Envelope.sender: not a node of your Hello.")
        if to not in self._local_nodes:
            raise invalid("Envelope.to: that node is not on this host.")
        if self._owners is not None and self._trusted:
            self._owners.record_trusted(to, message)
        elif self._owners is not None:
            admitted, evicted = self._owners.admit(self._remote_nodes, to, message)
            if evicted:
                await self._release(evicted)
            if not admitted:
                return
        self._received_tensors.add(received)
        await self._sink.receive(sender, to, message)

    async def _release(self, evicted: EvictedSession) -> None:
        """Releases the session on its nodes. If its owner awaits an answer, the `CacheMiss` starts another attempt."""
        for node in evicted.nodes:
            await self._sink.receive(evicted.owner, node, Release(evicted.session))
        first = evicted.nodes[0]
        self._send(first, evicted.owner, CacheMiss(evicted.session, evicted.attempt, first))
