"""A device: one session at a time, the others wait; what its user is told goes out as `Deliver`."""

from collections import deque
from collections.abc import Sequence

from serving.messages import (
    INF,
    Backlog,
    Begin,
    Call,
    Cancelled,
    Command,
    Deliver,
    Event,
    Finished,
    Hop,
    Joined,
    Lost,
    Message,
    Miss,
    Received,
    Reply,
)
from serving.nodes.chooser import Chooser, Tiers
from serving.nodes.requester import Numbers, Requester
from serving.nodes.route import Route, released
from serving.nodes.session import Session
from serving.policy import Policy

_ANSWERS = (Reply, Miss)
_PARKED = 48
"""Fewer than the sessions that a host lets a node have open: it would release the oldest in the node's name."""


class Device:
    def __init__(
        self, name: str, policy: Policy, hops: tuple[Hop, ...], tiers: Tiers, seed: int, timeout_s: float = INF
    ) -> None:
        self.name, self.policy, self.seed, self.timeout_s = name, policy, seed, timeout_s
        self.chooser, self.numbers = Chooser(tiers, policy.dispatch, name), Numbers()
        self.route = Route(name, policy, hops, self.chooser)
        self.waiting: deque[Call] = deque()
        self.current: Requester | None = None
        self.parked: dict[str, Session] = {}
        """Sessions between two calls."""

    def handle(self, event: Event, now: float) -> Sequence[Command]:
        """What only a device knows is settled here, the frequent first; the rest is for the session it serves."""
        if isinstance(event, Received):
            if not self._hears(event.message):
                return ()
        elif not isinstance(event, Finished):
            match event:
                case Begin():
                    self.waiting.append(event.call)
                    return self._next(now)
                case Cancelled():
                    if not self._serves(event.session):
                        return self._cancel(event.session)
                case Lost():
                    self.chooser.dead.add(event.peer)
                case Joined():
                    self.chooser.dead.discard(event.peer)
        current = self.current
        if not current or current.state != "running":
            return ()
        commands = current.handle(event, now)
        if current.state != "running":
            commands = commands + self._park(current)
        return commands + self._next(now) if self.waiting else commands

    def _hears(self, message: Message) -> bool:
        """Is it for the session that is being served?"""
        if isinstance(message, _ANSWERS):
            return self._serves(message.session)
        if isinstance(message, Backlog):
            self.chooser.backlogs[message.node] = message
        return False

    def _serves(self, session: str) -> bool:
        current = self.current
        return current is not None and current.state == "running" and current.s.call.session == session

    def _next(self, now: float) -> list[Command]:
        """Opens the session that waits longest, once the current one is over."""
        out: list[Command] = []
        while self.waiting and (self.current is None or self.current.state != "running"):
            session = Session(self.waiting.popleft(), self.seed)
            if old := self.parked.pop(session.call.session, None):
                self._resume(session, old)
            self.current = Requester(session, self.policy, self.route, self.numbers, self.timeout_s)
            out += self.current.begin(now)
            if self.current.state != "running":
                out += self._park(self.current)
        return out

    def _resume(self, session: Session, old: Session) -> None:
        session.resume(old)
        if not self.chooser.dead.isdisjoint(session.path):
            session.forget_route()

    def _park(self, over: Requester) -> list[Command]:
        """A session that may go on keeps its caches; beyond so many the one unused for longest goes."""
        name = over.s.call.session
        if not over.keeps or name in self.parked:
            return []
        self.parked[name] = over.s
        return self._forget(next(iter(self.parked))) if len(self.parked) > _PARKED else []

    def _forget(self, session: str) -> list[Command]:
        return released(self.parked.pop(session))

    def _cancel(self, session: str) -> list[Command]:
        if session in self.parked:
            return self._forget(session)
        kept = deque(call for call in self.waiting if call.session != session)
        gone, self.waiting = len(kept) < len(self.waiting), kept
        return [Deliver(session, (), (), "cancelled")] if gone else []
