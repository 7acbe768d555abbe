"""Runs nodes in real time: nodes on an event loop, work on one thread, messages over emulated links or a transport.

Events wait in a heap with the simulator's key (time, phase, serial). With a `ScriptedClock` none is handled while work
or a message is in flight, so that threads and transports yield the simulator's own log.
"""

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Literal, TypeAlias, get_args

from serving.drivers.clock import Clock
from serving.drivers.observer import Observer
from serving.drivers.simulator import ARRIVAL, DECISION, ComputeResource, Processor
from serving.hardware.executor import FatalWorkError, TransientWorkError
from serving.messages import (
    INF,
    Command,
    CopyCache,
    DropCache,
    EmitTokens,
    Event,
    Message,
    MessageReceived,
    MoveCache,
    Node,
    Outcome,
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

Pace: TypeAlias = Literal["wall", "hardware"]
"""wall: work takes as long as it does here. hardware: it is stretched to its executor's time on the timed hardware."""


def check_pace(pace: str) -> None:
    """Raises ValueError for a pace that is none, as runtime.pace of a configuration may be."""
    if pace not in get_args(Pace):
        raise ValueError(f"runtime.pace is {pace!r}; it is wall (as fast as here) or hardware (as the chips)")


Transmit: TypeAlias = Callable[[str, str, Message], None]
"""Passes (sender, receiver, message) to a transport; never blocks."""


_MAX_UNDELIVERED = 4096
"""Messages from transports that wait for their nodes; at this number transports stop reading."""


@dataclass
class PacingStats:
    """How well a run kept to the clock; `late_s` sums how long after they were due events were handled."""

    num_events: int = 0
    late_s: float = 0.0
    num_overruns: int = 0
    """Jobs that took longer here than on the timed hardware."""
    num_jobs: int = 0

    def record(self, late_s: float) -> None:
        self.num_events += 1
        self.late_s += late_s

    @property
    def summary(self) -> str:
        mean_ms = 1e3 * self.late_s / max(1, self.num_events)
        late = f"events came {mean_ms:.2f} ms late in the mean"
        return f"{late}; {self.num_overruns} of {self.num_jobs} works overran" if self.num_jobs else late


class RealTimeDriver:
    """An error of a node or of work ends the run, unless `on_error` takes it: then the event or the work is dropped.

    A `TransientWorkError` never ends the run: the node gets `WorkFailed`. A `FatalWorkError` always does.
    """

    def __init__(
        self,
        clock: Clock,
        observers: Iterable[Observer] = (),
        pace: Pace = "wall",
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        self.clock, self.pace, self.pacing, self._on_error = clock, pace, PacingStats(), on_error
        self._observers = tuple(observers)
        self._heap: list[tuple[float, int, int, Callable[[], None]]] = []
        self._serial = count()
        self._nodes: dict[str, Node] = {}
        self._compute: dict[str, ComputeResource] = {}
        self._links = LinkTable()
        self._transmitters: dict[str, Transmit] = {}
        self._emit_callbacks: list[Callable[[EmitTokens, float], None]] = []
        self._wakeup = asyncio.Event()
        self._num_in_flight = self._num_undelivered = 0
        self._departed_serial = 0
        self._error: BaseException | None = None
        self._thread = ThreadPoolExecutor(1, "chip")

    # Before it runs.

    def add(self, name: str, node: Node, compute: ComputeResource) -> None:
        """Raises ValueError for a name that a node of this process has."""
        if name in self._nodes:
            raise ValueError(f"a node of this process is called {name!r} already; give each node a name of its own")
        self._nodes[name], self._compute[name] = node, compute

    def connect(self, sender: str, receiver: str, link: LinkDirection) -> None:
        """Messages from `sender` to `receiver` take this link; without one they arrive at once."""
        self._links.connect(sender, receiver, link)

    def connect_access(self, name: str, outgoing: LinkDirection, incoming: LinkDirection) -> None:
        """All messages from and to this node take these links, but those for which `connect` gives another one."""
        self._links.connect_access(name, outgoing, incoming)

    def add_remote(self, node: str, transmit: Transmit) -> None:
        """Messages to `node` leave through `transmit`: it runs in another process, or is reached as if it did."""
        self._transmitters[node] = transmit

    def on_emit(self, callback: Callable[[EmitTokens, float], None]) -> None:
        """Calls `callback(command, now)` for every `EmitTokens`."""
        self._emit_callbacks.append(callback)

    def on_session_end(self, callback: Callable[[str, float], None]) -> None:
        """Calls `callback(session, now)` when a session has ended."""
        self.on_emit(lambda command, now: callback(command.session, now) if command.ending else None)

    # From outside, on the event loop.

    def post(self, at: float, node: str, event: Event, phase: int = ARRIVAL) -> None:
        self._push(at, phase, next(self._serial), partial(self._handle, node, event))

    def now(self) -> float:
        return self.clock.now()

    def receive(self, to: str, message: Message) -> None:
        """Delivers a message from a transport to a node of this process."""
        serial = self._departed_serial if self.clock.scripted else next(self._serial)
        if self.clock.scripted:
            self._num_in_flight -= 1
        elif to not in self._nodes:
            return
        self._num_undelivered += 1
        self._push(self.clock.now(), ARRIVAL, serial, partial(self._deliver, to, MessageReceived(message)))

    def _deliver(self, to: str, event: MessageReceived) -> None:
        self._num_undelivered -= 1
        self._handle(to, event)

    @property
    def has_messages_underway(self) -> bool:
        """True if an emulated link still holds a message, or one waits for its node."""
        return any(map(self._carries_message, (action for _, _, _, action in self._heap)))

    def _carries_message(self, action: Callable[[], None]) -> bool:
        return isinstance(action, partial) and (
            action.func == self._depart or isinstance(action.args[-1], MessageReceived)
        )

    def wake_up(self) -> None:
        """Lets `run` check again whether the run is over."""
        self._wakeup.set()

    async def wait_for_capacity(self) -> None:
        """Returns when fewer than the maximum of received messages wait. A transport reads on only then."""
        while self._num_undelivered >= _MAX_UNDELIVERED:
            await asyncio.sleep(0.001)

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Handles events until `is_over()`; with a scripted clock until none is left. Raises what work raised."""
        while not is_over():
            if self._error:
                raise self._error
            if self.clock.scripted and not self._num_in_flight and not self._heap:
                return
            at = self._heap[0][0] if self._heap and not (self.clock.scripted and self._num_in_flight) else INF
            if at < INF and self.clock.advance_to(at):
                self.pacing.record(self.clock.now() - at)
                heapq.heappop(self._heap)[3]()
                await asyncio.sleep(0)  # transports live on this loop too
            else:
                await self.clock.wait_until(at, self._wakeup)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    # Commands of nodes.

    def _handle(self, name: str, event: Event) -> None:
        now = self.clock.now()
        commands = self._commands_of(name, event, now)
        for observer in self._observers:
            observer.event_handled(name, event, now, commands)
        for command in commands:
            self._execute_command(name, command, now)

    def _commands_of(self, name: str, event: Event, now: float) -> Sequence[Command]:
        try:
            return self._nodes[name].handle(event, now)
        except Exception as error:
            if self._on_error is None:
                raise
            self._on_error(error)
            return ()

    def _execute_command(self, name: str, command: Command, now: float) -> None:
        match command:
            case StartWork(job, work):
                self._start_work(name, job, work, now)
            case SendMessage(to, message, nbytes):
                self._send(name, to, message, nbytes, now)
            case SetTimer(at, timer):
                self.post(max(at, now), name, TimerFired(timer), DECISION)
            case DropCache(session, first):
                self._change_cache(partial(self._compute[name].executor.drop, session, first))
            case MoveCache(session, other):
                self._change_cache(partial(self._compute[name].executor.move, session, other))
            case CopyCache(session, other, length):
                self._change_cache(partial(self._compute[name].executor.copy, session, other, length))
            case EmitTokens():
                for callback in self._emit_callbacks:
                    callback(command, now)

    def _start_work(self, name: str, job: int, work: Work, now: float) -> None:
        self._num_in_flight += 1
        self._thread.submit(self._run_work, asyncio.get_running_loop(), name, job, work, now, next(self._serial))

    def _send(self, name: str, to: str, message: Message, nbytes: int, now: float) -> None:
        link = self._links.find(name, to)
        arrives_s = link.arrival_s(nbytes, now) if link else now
        if not arrives_s >= now:  # NaN, too
            raise past_arrival(link, arrives_s, now)
        for observer in self._observers:
            observer.message_sent(name, to, message, nbytes, now, arrives_s)
        if arrives_s == INF:
            return
        serial = next(self._serial)
        if transmit := self._transmitters.get(to):
            self._push(arrives_s, ARRIVAL, serial, partial(self._depart, transmit, name, to, message, serial))
        elif to in self._nodes:
            self._push(arrives_s, ARRIVAL, serial, partial(self._handle, to, MessageReceived(message)))

    def _depart(self, transmit: Transmit, name: str, to: str, message: Message, serial: int) -> None:
        """The emulated link has delivered: pass the message to the transport. With a scripted clock no time passes."""
        if self.clock.scripted:
            self._num_in_flight += 1
            self._departed_serial = serial
        transmit(name, to, message)

    # Work, on the thread and back.

    def _change_cache(self, change: Callable[[], None]) -> None:
        """On the thread, behind the work that was started before. An error ends the run, or is reported."""
        loop = asyncio.get_running_loop()

        def run() -> None:
            try:
                change()
            except Exception as error:
                loop.call_soon_threadsafe(self._on_error or self._stop_with, error)

        self._thread.submit(run)

    def _stop_with(self, error: BaseException) -> None:
        self._error = error
        self._wakeup.set()

    def _run_work(
        self, loop: asyncio.AbstractEventLoop, name: str, job: int, work: Work, now: float, serial: int
    ) -> None:
        began = self.clock.now()
        try:
            outcome, seconds = self._compute[name].executor.execute(work)
        except BaseException as error:
            loop.call_soon_threadsafe(self._work_failed, name, job, error)
            return
        wall_interval = (began, self.clock.now())
        loop.call_soon_threadsafe(self._work_done, name, job, work, outcome, seconds, now, wall_interval, serial)

    def _work_done(
        self, name: str, job: int, work: Work, outcome: Outcome, seconds: float, now: float,
        wall_interval: tuple[float, float], serial: int,
    ) -> None:  # fmt: skip
        begin, end = (
            wall_interval
            if self.pace == "wall"
            else self._hardware_interval(self._compute[name].processor_of(work), now, seconds, wall_interval[1])
        )
        try:
            for observer in self._observers:
                observer.work_done(name, work, outcome, begin, end)
        except Exception as error:  # the loop, which calls this, would only log it
            self._stop_with(error)
        self._num_in_flight -= 1
        self._push(end, ARRIVAL, serial, partial(self._handle, name, WorkFinished(job, outcome)))

    def _hardware_interval(self, processor: Processor, now: float, seconds: float, done: float) -> tuple[float, float]:
        """When the timed hardware would begin and end the work; not before it is done here."""
        begin = max(now, processor.busy_until_s)
        end = processor.busy_until_s = max(begin + seconds, done)
        self.pacing.num_jobs += 1
        self.pacing.num_overruns += end > begin + seconds
        return begin, end

    def _work_failed(self, name: str, job: int, error: BaseException) -> None:
        self._num_in_flight -= 1
        if self._on_error and isinstance(error, Exception) and not isinstance(error, FatalWorkError):
            self._on_error(error)
        elif isinstance(error, TransientWorkError):
            log.warning("%s: %s", name, error)
        else:
            self._stop_with(error)
            return
        self.post(self.clock.now(), name, WorkFailed(job))

    def _push(self, at: float, phase: int, serial: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (at, phase, serial, action))
        self._wakeup.set()
