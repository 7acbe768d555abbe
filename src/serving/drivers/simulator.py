"""Runs nodes in virtual time: a heap of events, chips that run one job at a time, links that keep their order.

The heap key is (time, phase, serial): at one instant arrivals come before decisions, and events in the order in which
they were posted.
"""

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from sys import maxsize
from typing import Any

from serving.drivers.observer import Observer
from serving.hardware.executor import DraftPoolingExecutor, Executor, TimedDraft, TransientWorkError
from serving.messages import (
    INF,
    Command,
    CopyCache,
    DraftWork,
    DropCache,
    EmitTokens,
    Event,
    ForwardWork,
    MessageReceived,
    MoveCache,
    Node,
    SendMessage,
    SetTimer,
    StartWork,
    TimerFired,
    Work,
    WorkFailed,
    WorkFinished,
)
from serving.network.channel import LinkDirection, LinkTable, past_arrival

log = logging.getLogger(__name__)


ARRIVAL = 0
"""The phase of an instant in which messages, outcomes and requests arrive."""
DECISION = 1
"""The phase after it, of timers."""
_CALLBACK_PHASE = -1
_CRASHED = maxsize
"""More than any serial: no event reaches the node."""
_GC_THRESHOLD = 100_000
"""New objects between two runs of the garbage collector."""


@dataclass(slots=True)
class Processor:
    """Runs one job at a time."""

    busy_until_s: float = 0.0


@dataclass(slots=True)
class ComputeResource:
    """What a node's work runs on. Nodes of one host may share its processor; drafts may have one of their own."""

    executor: Executor
    processor: Processor = field(default_factory=Processor)
    draft_processor: Processor | None = None

    def processor_of(self, work: Work) -> Processor:
        """What runs the work."""
        if self.draft_processor is None or isinstance(work, ForwardWork):
            return self.processor
        return self.draft_processor


@dataclass(slots=True, eq=False)
class _Place:
    """A node in the run. Events, work and messages hold it, so that the node is looked up by name once for each pair of
    sender and receiver, not for each of them: at thousands of nodes each look-up waits for memory.
    """

    name: str
    handle: Callable[[Event, float], Sequence[Command]]
    """The node's own."""
    compute: ComputeResource
    begin_draft: Callable[[DraftWork], TimedDraft | None] | None = None
    """How its executor begins a draft; None: it executes each at once."""
    first_serial: int = 0
    """The serial of its first event: older ones were posted to a node of this name that has crashed."""
    routes: dict[str, "_Route"] = field(default_factory=dict)
    """Receiver -> the way there, entered with the first message."""


@dataclass(slots=True, eq=False)
class _Route:
    """The way from one node to another."""

    receiver: _Place
    link: LinkDirection | None
    """None: messages arrive at once."""


@dataclass(slots=True, eq=False)
class _RunningDraft:
    """A draft on a node's chip that its engine has not written to the end."""

    place: _Place
    job: int
    work: DraftWork
    draft: TimedDraft
    processor: Processor
    begin_s: float
    serial: int
    least_end_s: float


class Simulator:
    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, int, _Place | None, Any]] = []
        """(time, phase, serial, node, event); a callback has no node."""
        self._serial = count()
        self._places: dict[str, _Place] = {}
        self._links = LinkTable()
        self.set_observers(observers)
        self._has_routes = False
        self._drafts: list[_RunningDraft] = []
        """Drafts that their engines have not written to the end, in the order in which the chips began them."""
        self._end_callbacks: list[Callable[[str, float], None]] = []

    def set_observers(self, observers: Iterable[Observer]) -> None:
        """These take the place of the observers so far."""
        observing = tuple(observers)
        self._event_handled = [each.event_handled for each in observing]
        self._work_done = [each.work_done for each in observing]
        self._message_sent = [each.message_sent for each in observing]

    def add(self, name: str, node: Node, compute: ComputeResource) -> None:
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = _Place(name, node.handle, compute)
        place.handle, place.compute, executor = node.handle, compute, compute.executor
        place.begin_draft = executor.begin if isinstance(executor, DraftPoolingExecutor) else None
        if place.first_serial == _CRASHED:
            place.first_serial = next(self._serial)

    def crash(self, name: str) -> None:
        """Removes a node, its work and the messages on their way to it, until a node of that name is added again."""
        self._end([each for each in self._drafts if each.place.name == name])
        self._places[name].first_serial = _CRASHED

    def call_at(self, at: float, callback: Callable[[], None]) -> None:
        """Calls `callback()` at that time, before the events of that instant."""
        heappush(self._heap, (max(at, self.now), _CALLBACK_PHASE, next(self._serial), None, callback))

    def connect(self, sender: str, receiver: str, link: LinkDirection) -> None:
        """Messages from `sender` to `receiver` take this link; without one they arrive at once."""
        self._links.connect(sender, receiver, link)
        self._forget_routes()

    def connect_access(self, name: str, outgoing: LinkDirection, incoming: LinkDirection) -> None:
        """All messages from and to this node take these links, but those for which `connect` gives another one."""
        self._links.connect_access(name, outgoing, incoming)
        self._forget_routes()

    def on_session_end(self, callback: Callable[[str, float], None]) -> None:
        """Calls `callback(session, now)` when a session has ended."""
        self._end_callbacks.append(callback)

    def post(self, at: float, node: str, event: Event, phase: int = ARRIVAL) -> None:
        heappush(self._heap, (max(at, self.now), phase, next(self._serial), self._places[node], event))

    def run(self, until: float = INF) -> None:
        """Runs all events up to `until`, in seconds."""
        with infrequent_gc():
            self._run(until)

    def _run(self, until: float) -> None:
        heap, observe = self._heap, self._event_handled
        while True:
            if self._drafts:
                self._run_drafts()
            if not heap or heap[0][0] > until:
                break
            now, _, serial, place, event = heappop(heap)
            self.now = now
            if place is None:
                event()
                continue
            if serial < place.first_serial:
                continue
            commands = place.handle(event, now)
            for event_handled in observe:
                event_handled(place.name, event, now, commands)
            for command in commands:
                self._carry_out(place, command)

    def _carry_out(self, place: _Place, command: Command) -> None:
        """A `DraftDecision` is for observers only."""
        if isinstance(command, SendMessage):
            self._send(place, command)
        elif isinstance(command, StartWork):
            self._start_work(place, command)
        elif isinstance(command, EmitTokens):
            self._emit(command)
        elif isinstance(command, SetTimer):
            self._set_timer(place, command)
        elif isinstance(command, DropCache):
            self._drop_cache(place, command)
        elif isinstance(command, MoveCache):
            self._end_drafts(command.session)
            place.compute.executor.move(command.session, command.to)
        elif isinstance(command, CopyCache):
            place.compute.executor.copy(command.session, command.to, command.length)

    def _set_timer(self, place: _Place, command: SetTimer) -> None:
        due_s, event = max(command.due_s, self.now), TimerFired(command.timer)
        heappush(self._heap, (due_s, DECISION, next(self._serial), place, event))

    def _drop_cache(self, place: _Place, command: DropCache) -> None:
        self._end_drafts(command.session)
        place.compute.executor.drop(command.session, command.start_layer)

    def _end_drafts(self, session: str) -> None:
        if self._drafts:
            self._end([each for each in self._drafts if each.work.session == session])

    def _emit(self, command: EmitTokens) -> None:
        if command.ending:
            for callback in self._end_callbacks:
                callback(command.session, self.now)

    def _start_work(self, place: _Place, command: StartWork) -> None:
        compute, work = place.compute, command.work
        processor = compute.processor_of(work)
        if self._drafts:
            self._end([each for each in self._drafts if each.processor is processor])
        if (begin_draft := place.begin_draft) and isinstance(work, DraftWork) and (draft := begin_draft(work)):
            self._enter(draft, place, command.job, work)
            return
        try:
            outcome, seconds = compute.executor.execute(work)
        except TransientWorkError as error:
            log.warning("%s: %s", place.name, error)
            heappush(self._heap, (self.now, ARRIVAL, next(self._serial), place, WorkFailed(command.job)))
            return
        begin, busy_until_s = self.now, processor.busy_until_s
        if busy_until_s > begin:
            begin = busy_until_s  # abandoned work still occupies its chip
        end = processor.busy_until_s = begin + seconds
        for work_done in self._work_done:
            work_done(place.name, work, outcome, begin, end)
        heappush(self._heap, (end, ARRIVAL, next(self._serial), place, WorkFinished(command.job, outcome)))

    def _enter(self, draft: TimedDraft, place: _Place, job: int, work: DraftWork) -> None:
        """Keeps a draft running, so that it is written together with those that begin before it can end."""
        processor, serial = place.compute.processor_of(work), next(self._serial)
        begin_s = max(self.now, processor.busy_until_s)
        least_end_s = begin_s + draft.least_s
        self._drafts.append(_RunningDraft(place, job, work, draft, processor, begin_s, serial, least_end_s))

    def _run_drafts(self) -> None:
        """Runs forwards until no draft can end before the next event."""
        while self._drafts:
            first = min(self._drafts, key=lambda each: each.least_end_s)
            if self._heap and first.least_end_s > self._heap[0][0]:
                return
            if not first.draft.done:
                first.draft.advance()
            for each in self._drafts:
                each.least_end_s = each.begin_s + each.draft.least_s
            self._end([each for each in self._drafts if each.draft.done])

    def _end(self, ending: Sequence[_RunningDraft]) -> None:
        """Writes these drafts to the end, and posts their events."""
        for each in ending:
            outcome, seconds = each.draft.finish()
            end_s = each.processor.busy_until_s = each.begin_s + seconds
            for work_done in self._work_done:
                work_done(each.place.name, each.work, outcome, each.begin_s, end_s)
            event = WorkFinished(each.job, outcome)
            heappush(self._heap, (end_s, ARRIVAL, each.serial, each.place, event))
        self._drafts = [each for each in self._drafts if each not in ending]

    def _send(self, place: _Place, command: SendMessage) -> None:
        now, to, message, nbytes = self.now, command.to, command.message, command.nbytes
        route = place.routes.get(to) or self._enter_route(place, to)
        link = route.link
        arrives_s = link.arrival_s(nbytes, now) if link else now
        if not arrives_s >= now:  # NaN, too
            raise past_arrival(link, arrives_s, now)
        for message_sent in self._message_sent:
            message_sent(place.name, to, message, nbytes, now, arrives_s)
        if arrives_s < INF:
            heappush(self._heap, (arrives_s, ARRIVAL, next(self._serial), route.receiver, MessageReceived(message)))

    def _enter_route(self, sender: _Place, to: str) -> _Route:
        self._has_routes = True
        route = sender.routes[to] = _Route(self._places[to], self._links.find(sender.name, to))
        return route

    def _forget_routes(self) -> None:
        """Links are given before the run, as a rule, when no route is known."""
        if self._has_routes:
            for place in self._places.values():
                place.routes.clear()
            self._has_routes = False


@contextmanager
def infrequent_gc() -> Iterator[None]:
    """Messages and records form no cycles, so collecting every 700 new objects finds nothing; it takes an eighth of a
    run's time.
    """
    before = gc.get_threshold()
    gc.set_threshold(_GC_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
