"""Which remote node opened which session: others may not speak of it.

What a host knows of its run, so that it can check what others say.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from serving.messages import Backlog, Hop, Message, Release, Request
from serving.transport.errors import invalid


@dataclass
class Tenure:
    """Who opened a session, and which nodes here were told of it."""

    owner: str
    told: set[str] = field(default_factory=set)


class Owners:
    """Bounded: a node keeps `sessions` open at most; its oldest is released in its name to make room.

    Nodes that are not connected keep what is theirs until they start again, so that nobody takes over a session while
    its owner is away; of absent nodes `absent` are remembered.
    """

    def __init__(self, sessions: int, absent: int) -> None:
        self._sessions, self._absent = sessions, absent
        self._by_session: dict[str, Tenure] = {}
        self._by_owner: dict[str, dict[str, None]] = {}
        self._away: dict[str, None] = {}

    @property
    def open(self) -> int:
        """Sessions that somebody owns."""
        return len(self._by_session)

    def admit(self, nodes: Iterable[str], to: str, message: Message) -> tuple[bool, list[tuple[str, Release]]]:
        """May it be heard, and who must hear a release before it?

        A release of a session that its sender has not opened here is not heard: it could only harm. Raises
        RefusedError for a session that another host opened.
        """
        if isinstance(message, Backlog):
            return True, []
        session = message.rows.session if isinstance(message, Request) else message.session
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

    def vouched(self, to: str, message: Message) -> None:
        """A node of another tier, which is trusted, passes on what a device asked or is done with: the device may
        itself release here what it opened there.
        """
        if isinstance(message, Request):
            tenure = self._by_session.setdefault(message.rows.session, Tenure(message.reply_to))
            tenure.told.add(to)
            self._by_owner.setdefault(tenure.owner, {})[message.rows.session] = None
        elif isinstance(message, Release):
            self._release(message.session, self._by_session.get(message.session), to)

    def _claim(self, session: str, owner: str, to: str) -> list[tuple[str, Release]]:
        opened = self._by_owner.setdefault(owner, {})
        gone: list[tuple[str, Release]] = []
        if session not in self._by_session and len(opened) >= self._sessions:
            oldest = next(iter(opened))
            gone = [(node, Release(oldest)) for node in sorted(self._by_session[oldest].told)]
            self._forget(oldest)
            opened = self._by_owner.setdefault(owner, {})
        opened[session] = None
        self._by_session.setdefault(session, Tenure(owner)).told.add(to)
        return gone

    def _release(self, session: str, tenure: Tenure | None, to: str) -> bool:
        if tenure is None or to not in tenure.told:
            return False
        tenure.told.discard(to)
        if not tenure.told:
            self._forget(session)
        return True

    def _forget(self, session: str) -> None:
        owner = self._by_session.pop(session).owner
        opened = self._by_owner[owner]
        del opened[session]
        if not opened:
            del self._by_owner[owner]

    def away(self, nodes: Iterable[str]) -> None:
        """They are not connected any more."""
        for node in nodes:
            self._away[node] = None
        while len(self._away) > self._absent:
            self.restarted((next(iter(self._away)),))

    def back(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._away.pop(node, None)

    def restarted(self, nodes: Iterable[str]) -> None:
        """They have forgotten their sessions: the names are free."""
        for node in nodes:
            self._away.pop(node, None)
            for session in list(self._by_owner.get(node, ())):
                self._forget(session)


@dataclass(frozen=True)
class Known:
    """None: not known here, only the general limits are checked."""

    vocabulary: int | None = None
    """Token ids are below this."""
    hidden: int | None = None
    """The width of hidden states."""
    route: tuple[Hop, ...] | None = None
    """The only route that requests may take."""
    peers: frozenset[str] = frozenset()
    """Nodes of other tiers: they may speak of sessions that a device opened. A name is trusted as far as the token."""
