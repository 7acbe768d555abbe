"""Which sessions a worker knows: the newest round of each, who asks for it, who of those was lost, which are over."""

from collections.abc import Iterable
from typing import Literal

from serving.messages import Request

RELEASED = 4096
"""How many sessions that are over are remembered."""
_REOPENED = 1024
"""Rounds by which a session that is over must be exceeded: nothing that is still on its way is so young."""

Standing = Literal["open", "old", "over"]


class Tenancy:
    def __init__(self) -> None:
        self.newest: dict[str, int] = {}
        """Session -> newest round seen; once it is released, the round that opens it again must be newer."""
        self.released: dict[str, None] = {}
        """The sessions that were released last, the oldest first."""
        self.owners: dict[str, tuple[str, float]] = {}
        """Session -> who asks for it, and when it last did."""
        self.since: dict[str, float] = {}
        """Session -> when it first came."""
        self.ways: dict[str, tuple[str, ...]] = {}
        """Session -> the nodes by way of which it last came."""
        self.leases: dict[int, tuple[str, float]] = {}
        """Timer -> who was lost, and when: what it does not ask for again by then is released."""

    def standing(self, m: Request, now: float) -> Standing:
        """Is a request to be served? If it is, its owner is known from now on."""
        session, newest = m.rows.session, self.newest.get(m.rows.session, -1)
        if session in self.released:
            if m.round <= newest:
                return "over"
            del self.released[session]
        elif m.round < newest:
            if not self._lives_anew(session, m.reply_to):
                return "old"
            del self.newest[session]
        self.owners[session] = m.reply_to, now
        self.since.setdefault(session, now)
        self.ways[session] = m.path[: m.hop]
        return "open"

    def _lives_anew(self, session: str, owner: str) -> bool:
        """Did the owner ask last before it was lost? Then it may have started again, and count from 0."""
        last = self.owners.get(session)
        return last is not None and any(last[0] == owner == p and last[1] <= at for p, at in self.leases.values())

    def lease(self, peer: str, now: float) -> int | None:
        """Whoever was lost may come back for its sessions, for a while: the timer that ends it; None if it had none."""
        if not any(owner == peer for owner, _ in self.owners.values()):
            return None
        timer = min(self.leases, default=0) - 1
        self.leases[timer] = peer, now
        return timer

    def expire(self, timer: int) -> list[str]:
        """The lease is over: the sessions that nobody came back for. They are not over: they may still open again."""
        peer, since = self.leases.pop(timer)
        left = [session for session, (owner, asked) in self.owners.items() if owner == peer and asked <= since]
        self.close(left)
        return left

    def stranded(self, peer: str, here: str) -> list[str]:
        """The sessions of others that came here by way of a node that is lost."""
        return [
            session
            for session, way in self.ways.items()
            if peer in way and way[0] != here and self.owners.get(session, ("",))[0] != peer
        ]

    def close(self, sessions: Iterable[str]) -> None:
        """Not over, but nobody counts on them: should they come again, they open as new ones do."""
        for session in sessions:
            self.newest.pop(session, None)
            self.since.pop(session, None)

    def release(self, session: str) -> None:
        """Over. What is on its way must not open it again; in time nothing is, and its name goes.

        A message that comes later still does no harm: if it needs a cache it is a `Miss` that nobody awaits, else it
        leaves a cache that is the first to be evicted.
        """
        self.since.pop(session, None)
        if session not in self.released:
            self.released[session] = None
            self.newest[session] = self.newest.get(session, 0) + _REOPENED
        if len(self.released) > RELEASED:
            oldest = next(iter(self.released))
            del self.released[oldest], self.newest[oldest]

    def is_open(self, session: str) -> bool:
        return session in self.newest and session not in self.released
