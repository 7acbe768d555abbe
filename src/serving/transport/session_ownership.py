"""Which remote node opened which session: others may not speak of it.

What a host knows of its run, so that it can check what others say.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from serving.messages import Hop, LoadReport, Message, Release, Request
from serving.transport.errors import invalid


@dataclass
class SessionOwnership:
    """Who opened a session, and which nodes here were told of it."""

    owner: str
    notified_nodes: set[str] = field(default_factory=set)


class SessionOwners:
    """Bounded: a node keeps `sessions` open at most; its oldest is released in its name to make room.

    Nodes that are not connected keep what is theirs until they start again, so that nobody takes over a session while
    its owner is away; of absent nodes `absent` are remembered.
    """

    def __init__(self, max_sessions: int, max_disconnected: int) -> None:
        self._max_sessions, self._max_disconnected = max_sessions, max_disconnected
        self._by_session: dict[str, SessionOwnership] = {}
        self._by_owner: dict[str, dict[str, None]] = {}
        self._disconnected: dict[str, None] = {}

    @property
    def num_sessions(self) -> int:
        """Sessions that somebody owns."""
        return len(self._by_session)

    def admit(self, nodes: Iterable[str], to: str, message: Message) -> tuple[bool, list[tuple[str, Release]]]:
        """May it be heard, and who must hear a release before it?

        A release of a session that its sender has not opened here is not heard: it could only harm. Raises
        ProtocolError for a session that another host opened.
        """
        if isinstance(message, LoadReport):
            return True, []
        session = message.slice.session if isinstance(message, Request) else message.session
        tenure = self._by_session.get(session)
        if tenure and tenure.owner not in nodes:
            raise invalid(f"session: {session!r} was opened by another host.")
        if isinstance(message, Release):
            return self._release(session, tenure, to), []
        if not isinstance(message, Request):
            return True, []
        if message.reply_to not in nodes:
            raise invalid(f"request.reply_to: {message.reply_to!r} does not live on the host that asks.")
        return True, self._claim(session, message.reply_to, to)

    def record_trusted(self, to: str, message: Message) -> None:
        """A node of another tier, which is trusted, passes on what a device asked or is done with: the device may
        itself release here what it opened there.
        """
        if isinstance(message, Request):
            tenure = self._by_session.setdefault(message.slice.session, SessionOwnership(message.reply_to))
            tenure.notified_nodes.add(to)
            self._by_owner.setdefault(tenure.owner, {})[message.slice.session] = None
        elif isinstance(message, Release):
            self._release(message.session, self._by_session.get(message.session), to)

    def _claim(self, session: str, owner: str, to: str) -> list[tuple[str, Release]]:
        opened = self._by_owner.setdefault(owner, {})
        gone: list[tuple[str, Release]] = []
        if session not in self._by_session and len(opened) >= self._max_sessions:
            oldest = next(iter(opened))
            gone = [(node, Release(oldest)) for node in sorted(self._by_session[oldest].notified_nodes)]
            self._remove(oldest)
            opened = self._by_owner.setdefault(owner, {})
        opened[session] = None
        self._by_session.setdefault(session, SessionOwnership(owner)).notified_nodes.add(to)
        return gone

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
        """They are not connected any more."""
        for node in nodes:
            self._disconnected[node] = None
        while len(self._disconnected) > self._max_disconnected:
            self.restarted((next(iter(self._disconnected)),))

    def reconnected(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._disconnected.pop(node, None)

    def restarted(self, nodes: Iterable[str]) -> None:
        """They have forgotten their sessions: the names are free."""
        for node in nodes:
            self._disconnected.pop(node, None)
            for session in list(self._by_owner.get(node, ())):
                self._remove(session)


@dataclass(frozen=True)
class PeerExpectations:
    """None: not known here, only the general limits are checked."""

    vocab_size: int | None = None
    """Token ids are below this."""
    hidden_size: int | None = None
    """The width of hidden states."""
    hops: tuple[Hop, ...] | None = None
    """The only route that requests may take."""
    trusted_nodes: frozenset[str] = frozenset()
    """Nodes of other tiers: they may speak of sessions that a device opened. A name is trusted as far as the token."""
