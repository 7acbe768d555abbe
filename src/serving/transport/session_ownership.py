"""Tracks which remote node opened which session, so that no other host can send messages about it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from serving.messages import Hop, LoadReport, Message, Release, Request
from serving.transport.errors import invalid


@dataclass
class SessionOwnership:
    """The node that opened a session, and the local nodes that know the session."""

    owner: str
    notified_nodes: set[str] = field(default_factory=set)


class SessionOwners:
    """Above `max_sessions` open sessions of one owner, its oldest is released in its name.

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

    def admit(self, nodes: Iterable[str], to: str, message: Message) -> tuple[bool, list[tuple[str, Release]]]:
        """Returns True if `message` may be delivered, and the (node, release) pairs to deliver before it.

        A release of a session that the sender did not open here is not delivered. Raises ProtocolError for a session
        that another host opened.
        """
        if isinstance(message, LoadReport):
            return True, []
        session = message.slice.session if isinstance(message, Request) else message.session
        ownership = self._by_session.get(session)
        if ownership and ownership.owner not in nodes:
            raise invalid(f"session: {session!r} was opened by another host.")
        if isinstance(message, Release):
            return self._release(session, ownership, to), []
        if not isinstance(message, Request):
            return True, []
        if message.reply_to not in nodes:
            raise invalid(f"request.reply_to: {message.reply_to!r} is not a node of the sending host.")
        return True, self._claim(session, message.reply_to, to)

    def record_trusted(self, to: str, message: Message) -> None:
        """Records a device's message that a trusted node of another tier forwarded, so that the device itself may
        release the session here.
        """
        if isinstance(message, Request):
            ownership = self._by_session.setdefault(message.slice.session, SessionOwnership(message.reply_to))
            ownership.notified_nodes.add(to)
            self._by_owner.setdefault(ownership.owner, {})[message.slice.session] = None
        elif isinstance(message, Release):
            self._release(message.session, self._by_session.get(message.session), to)

    def _claim(self, session: str, owner: str, to: str) -> list[tuple[str, Release]]:
        opened = self._by_owner.setdefault(owner, {})
        releases: list[tuple[str, Release]] = []
        if session not in self._by_session and len(opened) >= self._max_sessions:
            oldest = next(iter(opened))
            releases = [(node, Release(oldest)) for node in sorted(self._by_session[oldest].notified_nodes)]
            self._remove(oldest)
            opened = self._by_owner.setdefault(owner, {})
        opened[session] = None
        self._by_session.setdefault(session, SessionOwnership(owner)).notified_nodes.add(to)
        return releases

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


@dataclass(frozen=True)
class PeerExpectations:
    """Facts of the run against which messages are checked; None: unknown, only the general limits apply."""

    vocab_size: int | None = None
    """Token ids are below this."""
    hidden_size: int | None = None
    """Width of hidden states."""
    hops: tuple[Hop, ...] | None = None
    """The only hops that requests may have."""
    trusted_nodes: frozenset[str] = frozenset()
    """Nodes of other tiers, which may send messages about sessions that a device opened.

    Only the token keeps other hosts from using such a name.
    """
