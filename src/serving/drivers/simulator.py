"""Runs nodes in virtual time: a heap of events, chips that run one job at a time, links that keep their order.

The heap key is (time, phase, serial): at one instant arrivals come before decisions, and events in the order in which
they were posted.
"""

import gc
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol

from serving.drivers.observer import Observer
from serving.hardware.executor import DraftPoolingExecutor, Executor, TimedDraft, TransientWorkError
from serving.messages import (
    INF,
    Command,
    DraftWork,
    DropCache,
    EmitTokens,
    Event,
    MessageReceived,
    Node,
    SendMessage,
    SetTimer,
    StartWork,
    TimerFired,
    WorkFailed,
    WorkFinished,
)

log = logging.getLogger(__name__)


ARRIVAL = 0
"""The phase of an instant in which messages, outcomes and requests arrive."""
DECISION = 1
"""The phase after it, of timers."""
_CALLBACK_PHASE = -1
_GC_THRESHOLD = 100_000
"""New objects between two runs of the garbage collector."""


class LinkDirection(Protocol):
    """One direction of a link."""

    def arrival_s(self, nbytes: float, now: float) -> float:
        """When a message sent at `now` arrives; infinite: it is lost. Calls come in order of `now`."""
        ...


@dataclass(slots=True)
class Processor:
    """Runs one job at a time."""

    busy_until_s: float = 0.0


@dataclass(slots=True)
class ComputeResource:
    """What a node's work runs on. Nodes of one host may share its processor."""

    executor: Executor
    processor: Processor = field(default_factory=Processor)


@dataclass(slots=True, eq=False)
class _RunningDraft:
    """A draft on a node's chip that its engine has not written to the end."""

    node: str
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
        self._heap: list[tuple[float, int, int, str, Any]] = []
        """(time, phase, serial, node, event); a callback has the node ""."""
        self._crash_serials: dict[str, float] = {}
        """Crashed node -> the first serial of its successor's events; infinite until a successor is added."""
        self._serial = count()
        self._nodes: dict[str, Node] = {}
        self._compute: dict[str, ComputeResource] = {}
        self._begin: dict[str, Callable[[DraftWork], TimedDraft | None] | None] = {}
        """Node -> how its executor begins a draft; None: it executes each at once."""
        self._links: dict[str, dict[str, LinkDirection]] = defaultdict(dict)
        self._observers = tuple(observers)
        self._drafts: list[_RunningDraft] = []
        """Drafts that their engines have not written to the end, in the order in which the chips began them."""
        self._end_callbacks: list[Callable[[str, float], None]] = []

    def add(self, name: str, node: Node, compute: ComputeResource) -> None:
        self._nodes[name], self._compute[name] = node, compute
        executor = compute.executor
        self._begin[name] = executor.begin if isinstance(executor, DraftPoolingExecutor) else None
        if name in self._crash_serials:
            self._crash_serials[name] = next(self._serial)

    def crash(self, name: str) -> None:
        """Removes a node, its work and the messages on their way to it, until a node of that name is added again."""
        self._end([each for each in self._drafts if each.node == name])
        self._crash_serials[name] = INF

    def call_at(self, at: float, callback: Callable[[], None]) -> None:
        """Calls `callback()` at that time, before the events of that instant."""
        heappush(self._heap, (max(at, self.now), _CALLBACK_PHASE, next(self._serial), "", callback))

    def connect(self, sender: str, receiver: str, link: LinkDirection) -> None:
        """Messages from `sender` to `receiver` take this link; without one they arrive at once."""
        self._links[sender][receiver] = link

    def on_session_end(self, callback: Callable[[str, float], None]) -> None:
        """Calls `callback(session, now)` when a session has ended."""
        self._end_callbacks.append(callback)

    def post(self, at: float, node: str, event: Event, phase: int = ARRIVAL) -> None:
        heappush(self._heap, (max(at, self.now), phase, next(self._serial), node, event))

    def run(self, until: float = INF) -> None:
        """Runs all events up to `until`, in seconds."""
        with infrequent_gc():
            self._run(until)

    def _run(self, until: float) -> None:
        heap, nodes, crash_serials = self._heap, self._nodes, self._crash_serials
        observe = [observer.event_handled for observer in self._observers]
        while True:
            if self._drafts:
                self._run_drafts()
            if not heap or heap[0][0] > until:
                break
            now, _, serial, name, event = heappop(heap)
            self.now = now
            if not name:
                event()
                continue
            if crash_serials and serial < crash_serials.get(name, 0):
                continue
            commands = nodes[name].handle(event, now)
            for event_handled in observe:
                event_handled(name, event, now, commands)
            for command in commands:
                self._carry_out(name, command)

    def _carry_out(self, name: str, command: Command) -> None:
        """A `DraftDecision` is for observers only."""
        if isinstance(command, SendMessage):
            self._send(name, command)
        elif isinstance(command, StartWork):
            self._start_work(name, command)
        elif isinstance(command, EmitTokens):
            self._emit(command)
        elif isinstance(command, SetTimer):
            self._set_timer(name, command)
        elif isinstance(command, DropCache):
            self._drop_cache(name, command)

    def _set_timer(self, name: str, command: SetTimer) -> None:
        self.post(command.due_s, name, TimerFired(command.timer), DECISION)

    def _drop_cache(self, name: str, command: DropCache) -> None:
        if self._drafts:
            self._end([each for each in self._drafts if each.work.session == command.session])
        self._compute[name].executor.drop(command.session, command.start_layer)

    def _emit(self, command: EmitTokens) -> None:
        if command.ending:
            for callback in self._end_callbacks:
                callback(command.session, self.now)

    def _start_work(self, name: str, command: StartWork) -> None:
        compute, work = self._compute[name], command.work
        processor = compute.processor
        if self._drafts:
            self._end([each for each in self._drafts if each.processor is processor])
        if (begin_draft := self._begin[name]) and isinstance(work, DraftWork) and (draft := begin_draft(work)):
            self._enter(draft, name, command.job, work, processor)
            return
        try:
            outcome, seconds = compute.executor.execute(work)
        except TransientWorkError as error:
            log.warning("%s: %s", name, error)
            heappush(self._heap, (self.now, ARRIVAL, next(self._serial), name, WorkFailed(command.job)))
            return
        begin, busy_until_s = self.now, processor.busy_until_s
        if busy_until_s > begin:
            begin = busy_until_s  # abandoned work still occupies its chip
        end = processor.busy_until_s = begin + seconds
        for observer in self._observers:
            observer.work_done(name, work, outcome, begin, end)
        heappush(self._heap, (end, ARRIVAL, next(self._serial), name, WorkFinished(command.job, outcome)))

    def _enter(self, draft: TimedDraft, name: str, job: int, work: DraftWork, processor: Processor) -> None:
        """Keeps a draft running, so that it is written together with those that begin before it can end."""
        begin_s, serial = max(self.now, processor.busy_until_s), next(self._serial)
        least_end_s = begin_s + draft.least_s
        self._drafts.append(_RunningDraft(name, job, work, draft, processor, begin_s, serial, least_end_s))

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
            for observer in self._observers:
                observer.work_done(each.node, each.work, outcome, each.begin_s, end_s)
            event = WorkFinished(each.job, outcome)
            heappush(self._heap, (end_s, ARRIVAL, each.serial, each.node, event))
        self._drafts = [each for each in self._drafts if each not in ending]

    def _send(self, name: str, command: SendMessage) -> None:
        now, to, message, nbytes = self.now, command.to, command.message, command.nbytes
        link = self._links[name].get(to)
        arrives_s = link.arrival_s(nbytes, now) if link else now
        for observer in self._observers:
            observer.message_sent(name, to, message, nbytes, now, arrives_s)
        if arrives_s < INF:
            heappush(self._heap, (arrives_s, ARRIVAL, next(self._serial), to, MessageReceived(message)))


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
