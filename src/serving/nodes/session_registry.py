"""The sessions that a worker knows: each one's owner (the device that sends its requests) and newest attempt, and which
were released.

A request is accepted only for an open session, so that a message that was delayed opens nothing.
"""

from collections.abc import Iterable
from typing import Literal

from serving.messages import Request

MAX_RELEASED = 4096
"""How many released sessions are remembered."""
_REOPEN_ATTEMPT_GAP = 1024
"""A released session opens again with an attempt this much newer; no delayed message can have one."""

RequestStatus = Literal["open", "superseded", "released"]


class SessionRegistry:
    def __init__(self) -> None:
        self.newest_attempt: dict[str, int] = {}
        """Session -> the newest attempt seen; for a released session, the attempt that a request must exceed."""
        self.released: dict[str, None] = {}
        """The last released sessions, oldest first."""
        self.owners: dict[str, tuple[str, float]] = {}
        """Session -> its owner, and when the owner's last request came."""
        self.first_seen_s: dict[str, float] = {}
        """Session -> when its first request came."""
        self.upstream_paths: dict[str, tuple[str, ...]] = {}
        """Session -> the nodes that forwarded its last request here."""
        self.leases: dict[int, tuple[str, float]] = {}
        """Timer -> a lost owner, and when it was lost. Its sessions are dropped when the timer fires."""

    def register(self, request: Request, now: float) -> RequestStatus:
        """Registers a request as the newest of its session if the session is open."""
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
        """True if the owner was lost after its last request: it may have restarted, and count attempts from 0."""
        last = self.owners.get(session)
        return last is not None and any(last[0] == owner == p and last[1] <= at for p, at in self.leases.values())

    def start_lease(self, peer: str, now: float) -> int | None:
        """Starts a lease on the sessions of a lost owner. Returns its timer; None if the peer owns no session."""
        if not any(owner == peer for owner, _ in self.owners.values()):
            return None
        timer = min(self.leases, default=0) - 1
        self.leases[timer] = peer, now
        return timer

    def expire_lease(self, timer: int) -> list[str]:
        """The sessions for which the lost owner sent nothing since. They are reset, not released."""
        peer, since = self.leases.pop(timer)
        expired = [session for session, (owner, last_s) in self.owners.items() if owner == peer and last_s <= since]
        self.reset(expired)
        return expired

    def stranded_sessions(self, peer: str, own_name: str) -> list[str]:
        """The sessions that the lost node forwarded here for other owners."""
        return [
            session
            for session, path in self.upstream_paths.items()
            if peer in path and path[0] != own_name and self.owners.get(session, ("",))[0] != peer
        ]

    def reset(self, sessions: Iterable[str]) -> None:
        """Forgets these sessions: their next request opens them as new ones."""
        for session in sessions:
            self.newest_attempt.pop(session, None)
            self.first_seen_s.pop(session, None)

    def release(self, session: str) -> None:
        """Marks a session as released, so that a delayed request does not open it again.

        Only the last `MAX_RELEASED` are remembered. A request delayed for longer does no harm: it gets a `CacheMiss`
        that its device ignores, or leaves a cache that is the first to be evicted.
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
