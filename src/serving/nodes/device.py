"""A device: its users' sessions, and its own chip's part of the target where a placement puts layers on it.

What it says to itself never leaves it: the hops that run here, their answers, and the tokens in both.
"""

from collections import deque
from collections.abc import Sequence

from serving.core.ids import Numbers
from serving.core.link_monitor import Monitor
from serving.core.session import Session
from serving.messages import (
    HEADER_NBYTES,
    INF,
    Backlog,
    Begin,
    Call,
    Cancelled,
    Command,
    Deliver,
    Event,
    Failed,
    Finished,
    Hop,
    Joined,
    Lost,
    Message,
    Miss,
    Received,
    Release,
    Reply,
    Request,
    Send,
    Woke,
)
from serving.nodes.compute_queue import Chip
from serving.nodes.hop_path import Route
from serving.nodes.node_selector import Chooser, Tiers
from serving.nodes.requester import Requester
from serving.nodes.worker import Worker
from serving.policy.policy import Policy
from serving.policy.slots.placement import HERE
from serving.policy.slots.scheduler import Continuous

_PARKED = 48
"""Fewer than the sessions that a host lets a node have open: it would release the oldest in the node's name."""

Commands = list[Command]


class Device:
    """
    Args:
        at_once: how many sessions it serves at a time; the others wait.
        row_nbytes: bytes of one token's hidden state on the link.
    """

    def __init__(
        self,
        name: str,
        policy: Policy,
        hops: tuple[Hop, ...],
        tiers: Tiers,
        seed: int,
        timeout_s: float = INF,
        at_once: int = 1,
        row_nbytes: int = 0,
    ) -> None:
        self.name, self.policy, self.seed, self.timeout_s, self.at_once = name, policy, seed, timeout_s, at_once
        tiers = {**tiers, HERE: (name,)}
        self.chooser, self.numbers = Chooser(tiers, policy.dispatch, name, policy.kv_cache.block_tokens), Numbers()
        self.route = Route(name, policy, hops, self.chooser)
        self.monitor = Monitor(row_nbytes)
        self.waiting: deque[Call] = deque()
        self.serving: dict[str, Requester] = {}
        """Sessions that run."""
        self.parked: dict[str, Session] = {}
        """Sessions between two calls."""
        self.chip = Chip() if at_once > 1 or any(hop.node == HERE for hop in hops) else None
        """Who uses it when, where more than one piece of work may want it."""
        self.here: Worker | None = None
        """What runs the hops that are here."""
        if any(hop.node == HERE for hop in hops):
            self.here = Worker(name, policy, tiers, scheduler=Continuous(), numbers=self.numbers)
            if self.here.workload:
                self.monitor.hop = self.here.workload.delay

    @property
    def current(self) -> Requester | None:
        """The session that is served, where it is one at a time."""
        return next(iter(self.serving.values()), None)

    def handle(self, event: Event, now: float) -> Sequence[Command]:
        if not self.chip:
            return self._handle(event, now)
        if isinstance(event, Finished | Failed):
            self.chip.done(event.job)
        said = self._to_others(self._handle(event, now), now)
        return self.chip.take(said, self._wanted, due=self.here is not None and self.here.deciding)

    def _wanted(self, job: int) -> bool:
        """Does anybody still wait for this job?"""
        if self.here and job == self.here.job:
            return True
        return any(job == each.job for each in self.serving.values())

    def _to_others(self, said: Commands, now: float) -> Commands:
        """What is left to say once everything that was said to this device itself has been heard."""
        out: Commands = []
        queue = deque(said)
        while queue:
            command = queue.popleft()
            if isinstance(command, Send) and command.to == self.name:
                queue.extendleft(reversed(self._received(command.message, now)))
            else:
                out.append(command)
        return out

    def _handle(self, event: Event, now: float) -> Commands:
        """What only a device knows is settled here, the frequent first; the rest is for the sessions it serves."""
        match event:
            case Received(message):
                return self._heard(message, now)
            case Finished(job) | Failed(job):
                return self._done(job, event, now)
            case Woke(timer):
                if self.here and (timer == self.here.timer or timer in self.here.tenancy.leases):
                    return self.here.handle(event, now)
                return self._tell_all(event, now)
            case Begin(call):
                self.waiting.append(call)
                return self._next(now)
            case Cancelled(session):
                current = self.serving.get(session)
                return self._tell(current, event, now) if current else self._cancel(session)
            case Lost(peer):
                self.chooser.lost(peer)
                for parked in self.parked.values():
                    parked.astray = True
                return self._tell_all(event, now) + (self.here.handle(event, now) if self.here else [])
            case Joined(peer):
                self.chooser.joined(peer)
                return (self.here.handle(event, now) if self.here else []) + self._tell_all(event, now)
        return []

    # Messages.

    def _heard(self, message: Message, now: float) -> Commands:
        """Something came over the link."""
        if isinstance(message, Request) and self.policy.monitors:
            nbytes = HEADER_NBYTES + message.rows.nbytes
            self.monitor.heard(nbytes, message.sent_s, message.condition, now)
        elif isinstance(message, Reply) and message.condition:
            self.monitor.heard(0, None, message.condition, now)
        return self._received(message, now)

    def _received(self, message: Message, now: float) -> Commands:
        if isinstance(message, Request | Release):
            return self.here.handle(Received(message), now) if self.here else []
        if isinstance(message, Backlog):
            self.chooser.backlogs[message.node] = message
            return []
        current = self.serving.get(message.session) if isinstance(message, Reply | Miss) else None
        return self._tell(current, Received(message), now) if current else []

    # Work on the chip.

    def _done(self, job: int, event: Event, now: float) -> Commands:
        here = self.here
        if here and job == here.job:
            out = self._to_others(here.handle(event, now), now)
            if not here.queue:  # now the sessions may have the chip, as they are once they have heard what it said
                out += [command for each in list(self.serving.values()) for command in each.meanwhile(now)]
        else:
            out = self._tell_all(event, now)
        self.monitor.chip_free_s = now
        return out

    # Sessions.

    def _tell(self, current: Requester, event: Event, now: float) -> Commands:
        out = current.handle(event, now)
        if current.state != "running":
            out = out + self._over(current) + self._next(now)
        return out

    def _tell_all(self, event: Event, now: float) -> Commands:
        """Each knows by name what is its own."""
        if len(self.serving) == 1:
            (current,) = self.serving.values()
            return self._tell(current, event, now)
        return [command for each in list(self.serving.values()) for command in self._tell(each, event, now)]

    def _next(self, now: float) -> Commands:
        """Opens the sessions that wait longest, as long as there is room."""
        out: Commands = []
        while self.waiting and len(self.serving) < self.at_once:
            session = Session(self.waiting.popleft(), self.seed, self.monitor)
            if old := self.parked.pop(session.call.session, None):
                self._resume(session, old)
            current = Requester(session, self.policy, self.route, self.numbers, self.timeout_s, self.at_once == 1)
            self.serving[session.call.session] = current
            out += current.begin(now)
            if current.state != "running":
                out += self._over(current)
        return out

    def _resume(self, session: Session, old: Session) -> None:
        session.resume(old)
        if not self.chooser.dead.isdisjoint(session.path):
            session.forget_route()

    def _over(self, over: Requester) -> Commands:
        """A session that may go on keeps its caches; beyond so many the one unused for longest goes."""
        name = over.s.call.session
        del self.serving[name]
        if not over.keeps or name in self.parked:
            return []
        self.parked[name] = over.s
        return self._forget(next(iter(self.parked))) if len(self.parked) > _PARKED else []

    def _forget(self, session: str) -> Commands:
        return self.route.released(self.parked.pop(session))

    def _cancel(self, session: str) -> Commands:
        if session in self.parked:
            return self._forget(session)
        kept = deque(call for call in self.waiting if call.session != session)
        gone, self.waiting = len(kept) < len(self.waiting), kept
        return [Deliver(session, (), (), "cancelled")] if gone else []
