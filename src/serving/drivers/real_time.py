"""Real time: nodes on an event loop, work on one thread, messages on wires of this process or through a transport.

What is due waits in a heap with the simulator's key (time, phase, serial). With a `Script` for a clock nothing is taken
from it while work or a message is under way, so that threads and transports yield the simulator's own log.
"""

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Literal, TypeAlias

from serving.drivers.clock import Clock
from serving.drivers.observer import Observer
from serving.drivers.simulator import Chip, Phase, Wire
from serving.hardware.executor import BrokenError, OutageError
from serving.messages import (
    INF,
    Command,
    Deliver,
    Drop,
    Event,
    Failed,
    Finished,
    Message,
    Node,
    Outcome,
    Received,
    Send,
    Start,
    Wake,
    Woke,
    Work,
)

log = logging.getLogger(__name__)

Pace: TypeAlias = Literal["wall", "hardware"]
"""Work takes as long as it takes here, or is stretched to what its executor says that it takes there."""

Carry: TypeAlias = Callable[[str, str, Message], None]
"""(sender, to, message) into a transport; never blocks."""


_CROWDED = 4096
"""Events that may wait before transports are slowed down."""


@dataclass
class Pacing:
    """How well a run kept to the clock: seconds by which things happened after they were due."""

    events: int = 0
    late_s: float = 0.0
    overrun: int = 0
    """Pieces of work that took longer here than on the hardware they stand for."""
    works: int = 0

    def note(self, late_s: float) -> None:
        self.events += 1
        self.late_s += late_s

    @property
    def described(self) -> str:
        mean_ms = 1e3 * self.late_s / max(1, self.events)
        late = f"events came {mean_ms:.2f} ms late in the mean"
        return f"{late}; {self.overrun} of {self.works} works overran" if self.works else late


class Live:
    """Errors end the run, unless they are `told` to somebody: then the work or the event is dropped and it goes on.

    An OutageError never ends it: its node hears that the work failed. A BrokenError always does.
    """

    def __init__(
        self,
        clock: Clock,
        observers: Iterable[Observer] = (),
        pace: Pace = "wall",
        told: Callable[[Exception], None] | None = None,
    ) -> None:
        self.clock, self.pace, self.pacing, self._told = clock, pace, Pacing(), told
        self._observers = tuple(observers)
        self._heap: list[tuple[float, int, int, Callable[[], None]]] = []
        self._serial = count()
        self._nodes: dict[str, Node] = {}
        self._chips: dict[str, Chip] = {}
        self._wires: dict[tuple[str, str], Wire] = {}
        self._carriers: dict[str, Carry] = {}
        self._hearers: list[Callable[[Deliver, float], None]] = []
        self._stirred = asyncio.Event()
        self._under_way = 0
        self._departed = 0
        self._problem: BaseException | None = None
        self._thread = ThreadPoolExecutor(1, "chip")

    # Before it runs.

    def add(self, name: str, node: Node, chip: Chip) -> None:
        """A node of this process; one that is there already is replaced: its host started again."""
        self._nodes[name], self._chips[name] = node, chip

    def connect(self, a: str, b: str, wire: Wire) -> None:
        """Messages from `a` to `b` take this wire; without one they arrive at once."""
        self._wires[a, b] = wire

    def carry(self, to: str, carry: Carry) -> None:
        """The node `to` lives in another process, or is to be reached as if it did."""
        self._carriers[to] = carry

    def on_deliver(self, hear: Callable[[Deliver, float], None]) -> None:
        """`hear(deliver, now)` is called with all that a user is told."""
        self._hearers.append(hear)

    def on_end(self, hear: Callable[[str, float], None]) -> None:
        """`hear(session, now)` is called when a session has ended."""
        self.on_deliver(lambda deliver, now: hear(deliver.session, now) if deliver.ending else None)

    # From outside, on the event loop.

    def post(self, at: float, node: str, event: Event, phase: Phase = Phase.ARRIVAL) -> None:
        self._push(at, phase, next(self._serial), partial(self._handle, node, event))

    def now(self) -> float:
        return self.clock.now()

    def heard(self, to: str, message: Message) -> None:
        """A transport brought a message for a node of this process."""
        if self.clock.scripted:
            self._under_way -= 1
            self._push(self.clock.now(), Phase.ARRIVAL, self._departed, partial(self._handle, to, Received(message)))
        elif to in self._nodes:
            self.post(self.clock.now(), to, Received(message))

    def stir(self) -> None:
        """Whoever runs this should look again whether it is over."""
        self._stirred.set()

    async def room(self) -> None:
        """Returns when few enough events are waiting: until then a transport should not read on."""
        while len(self._heap) >= _CROWDED:
            await asyncio.sleep(0.001)

    async def run(self, over: Callable[[], bool]) -> None:
        """Lets things happen until `over()`, or, by script, until nothing is left; raises what work raised."""
        while not over():
            if self._problem:
                raise self._problem
            if self.clock.scripted and not self._under_way and not self._heap:
                return
            at = self._heap[0][0] if self._heap and not (self.clock.scripted and self._under_way) else INF
            if at < INF and self.clock.reach(at):
                self.pacing.note(self.clock.now() - at)
                heapq.heappop(self._heap)[3]()
                await asyncio.sleep(0)  # transports live on this loop too
            else:
                await self.clock.wait(at, self._stirred)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    # What nodes say.

    def _handle(self, name: str, event: Event) -> None:
        now = self.clock.now()
        commands = self._commands(name, event, now)
        for observer in self._observers:
            observer.handled(name, event, now, commands)
        for command in commands:
            self._obey(name, command, now)

    def _commands(self, name: str, event: Event, now: float) -> Sequence[Command]:
        try:
            return self._nodes[name].handle(event, now)
        except Exception as problem:
            if self._told is None:
                raise
            self._told(problem)
            return ()

    def _obey(self, name: str, command: Command, now: float) -> None:
        match command:
            case Start(job, work):
                self._start(name, job, work, now)
            case Send(to, message, nbytes):
                self._send(name, to, message, nbytes, now)
            case Wake(at, timer):
                self.post(max(at, now), name, Woke(timer), Phase.DECISION)
            case Drop(session, first):
                self._thread.submit(self._chips[name].executor.drop, session, first)
            case Deliver():
                for hear in self._hearers:
                    hear(command, now)

    def _start(self, name: str, job: int, work: Work, now: float) -> None:
        self._under_way += 1
        self._thread.submit(self._execute, asyncio.get_running_loop(), name, job, work, now, next(self._serial))

    def _send(self, name: str, to: str, message: Message, nbytes: int, now: float) -> None:
        wire = self._wires.get((name, to))
        arrives = wire.arrive(nbytes, now) if wire else now
        for observer in self._observers:
            observer.sent(name, to, message, nbytes, now, arrives)
        if arrives == INF:
            return
        serial = next(self._serial)
        if carry := self._carriers.get(to):
            self._push(arrives, Phase.ARRIVAL, serial, partial(self._depart, carry, name, to, message, serial))
        elif to in self._nodes:
            self._push(arrives, Phase.ARRIVAL, serial, partial(self._handle, to, Received(message)))

    def _depart(self, carry: Carry, name: str, to: str, message: Message, serial: int) -> None:
        """The shaped part of the way is over; by script the receiver hears it at this very instant."""
        if self.clock.scripted:
            self._under_way += 1
            self._departed = serial
        carry(name, to, message)

    # Work, on the thread and back.

    def _execute(
        self, loop: asyncio.AbstractEventLoop, name: str, job: int, work: Work, now: float, serial: int
    ) -> None:
        began = self.clock.now()
        try:
            outcome, seconds = self._chips[name].executor.execute(work)
        except BaseException as problem:
            loop.call_soon_threadsafe(self._failed, name, job, problem)
            return
        here = (began, self.clock.now())
        loop.call_soon_threadsafe(self._executed, name, job, work, outcome, seconds, now, here, serial)

    def _executed(
        self, name: str, job: int, work: Work, outcome: Outcome, seconds: float, now: float,
        here: tuple[float, float], serial: int,
    ) -> None:  # fmt: skip
        begin, end = here if self.pace == "wall" else self._stretched(self._chips[name], now, seconds, here[1])
        for observer in self._observers:
            observer.ran(name, work, outcome, begin, end)
        self._under_way -= 1
        self._push(end, Phase.ARRIVAL, serial, partial(self._handle, name, Finished(job, outcome)))

    def _stretched(self, chip: Chip, now: float, seconds: float, done: float) -> tuple[float, float]:
        """When the hardware would begin and end it; what took longer here ends when it is done."""
        begin = max(now, chip.processor.busy_until_s)
        end = chip.processor.busy_until_s = max(begin + seconds, done)
        self.pacing.works += 1
        self.pacing.overrun += end > begin + seconds
        return begin, end

    def _failed(self, name: str, job: int, problem: BaseException) -> None:
        self._under_way -= 1
        if self._told and isinstance(problem, Exception) and not isinstance(problem, BrokenError):
            self._told(problem)
        elif isinstance(problem, OutageError):
            log.warning("%s: %s", name, problem)
        else:
            self._problem = problem
            self._stirred.set()
            return
        self.post(self.clock.now(), name, Failed(job))

    def _push(self, at: float, phase: int, serial: int, do: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (at, phase, serial, do))
        self._stirred.set()
