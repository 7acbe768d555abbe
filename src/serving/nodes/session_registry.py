"""Which sessions a worker knows: the newest round of each, who asks for it, who of those was lost, which are over."""

from collections.abc import Iterable
from typing import Literal

from serving.messages import Request

MAX_RELEASED = 4096
"""How many sessions that are over are remembered."""
_REOPEN_ATTEMPT_GAP = 1024
"""Rounds by which a session that is over must be exceeded: nothing that is still on its way is so young."""

RequestStatus = Literal["open", "superseded", "released"]


class SessionRegistry:
    def __init__(self) -> None:
        self.newest_attempt: dict[str, int] = {}
        """Session -> newest round seen; once it is released, the round that opens it again must be newer."""
        self.released: dict[str, None] = {}
        """The sessions that were released last, the oldest first."""
        self.owners: dict[str, tuple[str, float]] = {}
        """Session -> who asks for it, and when it last did."""
        self.first_seen_s: dict[str, float] = {}
        """Session -> when it first came."""
        self.upstream_paths: dict[str, tuple[str, ...]] = {}
        """Session -> the nodes by way of which it last came."""
        self.leases: dict[int, tuple[str, float]] = {}
        """Timer -> who was lost, and when: what it does not ask for again by then is released."""

    def register(self, request: Request, now: float) -> RequestStatus:
        """Is a request to be served? If it is, its owner is known from now on."""
        session, newest = request.slice.session, self.newest_attempt.get(request.slice.session, -1)
        if session in self.released:
            if request.attempt <= newest:
                return "released"
            del self.released[session]
        elif request.attempt < newest:
            if not self._owner_restarted(session, request.reply_to):
                return "superseded"
            del self.newest_attempt[session]
        self.owners[session] = request.reply_to, now
        self.first_seen_s.setdefault(session, now)
        self.upstream_paths[session] = request.path[: request.hop_index]
        return "open"

    def _owner_restarted(self, session: str, owner: str) -> bool:
        """Did the owner ask last before it was lost? Then it may have started again, and count from 0."""
        last = self.owners.get(session)
        return last is not None and any(last[0] == owner == p and last[1] <= at for p, at in self.leases.values())

    def start_lease(self, peer: str, now: float) -> int | None:
        """Whoever was lost may come back for its sessions, for a while: the timer that ends it; None if it had none."""
        if not any(owner == peer for owner, _ in self.owners.values()):
            return None
        timer = min(self.leases, default=0) - 1
        self.leases[timer] = peer, now
        return timer

    def expire_lease(self, timer: int) -> list[str]:
        """The lease is over: the sessions that nobody came back for. They are not over: they may still open again."""
        peer, since = self.leases.pop(timer)
        left = [session for session, (owner, asked) in self.owners.items() if owner == peer and asked <= since]
        self.reset(left)
        return left

    def stranded_sessions(self, peer: str, own_name: str) -> list[str]:
        """The sessions of others that came here by way of a node that is lost."""
        return [
            session
            for session, way in self.upstream_paths.items()
            if peer in way and way[0] != own_name and self.owners.get(session, ("",))[0] != peer
        ]

    def reset(self, sessions: Iterable[str]) -> None:
        """Not over, but nobody counts on them: should they come again, they open as new ones do."""
        for session in sessions:
            self.newest_attempt.pop(session, None)
            self.first_seen_s.pop(session, None)

    def release(self, session: str) -> None:
        """Over. What is on its way must not open it again; in time nothing is, and its name goes.

        A message that comes later still does no harm: if it needs a cache it is a `Miss` that nobody awaits, else it
        leaves a cache that is the first to be evicted.
        """
        self.first_seen_s.pop(session, None)
        if session not in self.released:
            self.released[session] = None
            self.newest_attempt[session] = self.newest_attempt.get(session, 0) + _REOPEN_ATTEMPT_GAP
        if len(self.released) > MAX_RELEASED:
            oldest = next(iter(self.released))
            del self.released[oldest], self.newest_attempt[oldest]

    def is_open(self, session: str) -> bool:
        return session in self.newest_attempt and session not in self.released
