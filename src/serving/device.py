"""A device: one session at a time, the others wait; what its user is told goes out as `Deliver`."""

from collections import deque
from collections.abc import Sequence

from serving.chooser import Chooser, Tiers
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
    Miss,
    Received,
    Reply,
)
from serving.policy import Policy
from serving.requester import Numbers, Requester
from serving.session import Session


class Device:
    def __init__(
        self, name: str, policy: Policy, hops: tuple[Hop, ...], tiers: Tiers, seed: int, timeout_s: float = INF
    ) -> None:
        self.name, self.policy, self.hops, self.seed, self.timeout_s = name, policy, hops, seed, timeout_s
        self.chooser, self.numbers = Chooser(tiers, policy.dispatch, name), Numbers()
        self.waiting: deque[Call] = deque()
        self.current: Requester | None = None

    def handle(self, event: Event, now: float) -> Sequence[Command]:
        """What only a device knows is settled here, the frequent first; the rest is for the session it serves."""
        match event:
            case Finished():
                pass
            case Received():
                message = event.message
                if isinstance(message, Backlog):
                    self.chooser.backlogs[message.node] = message
                    return ()
                if not isinstance(message, Reply | Miss) or not self._serves(message.session):
                    return ()  # of a session that is over
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
        if not self.current:
            return ()
        commands = self.current.handle(event, now)
        return commands + self._next(now) if self.waiting else commands

    def _serves(self, session: str) -> bool:
        return self.current is not None and self.current.s.call.session == session

    def _next(self, now: float) -> list[Command]:
        """Opens the session that waits longest, once the current one is over."""
        out: list[Command] = []
        while self.waiting and (self.current is None or self.current.state != "running"):
            session = Session(self.waiting.popleft(), self.seed)
            self.current = Requester(
                self.name, session, self.policy, self.hops, self.chooser, self.numbers, self.timeout_s
            )
            out += self.current.begin(now)
        return out

    def _cancel(self, session: str) -> list[Command]:
        kept = deque(call for call in self.waiting if call.session != session)
        gone, self.waiting = len(kept) < len(self.waiting), kept
        return [Deliver(session, (), (), "cancelled")] if gone else []
