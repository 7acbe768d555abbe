"""Virtual time: a heap of events, chips that run one thing at a time, links that keep their order.

The heap key is (time, phase, serial): at one instant arrivals come before decisions, and what was posted first comes
first.
"""

import gc
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol

from serving.drivers.observer import Observer
from serving.hardware.executor import Executor, OutageError
from serving.messages import (
    INF,
    Chunk,
    Command,
    Deliver,
    Drop,
    Event,
    Failed,
    Finished,
    Node,
    Received,
    Send,
    Start,
    Wake,
    Woke,
)

log = logging.getLogger(__name__)


class Phase(IntEnum):
    ARRIVAL = 0
    DECISION = 1


_ARRIVAL = Phase.ARRIVAL
_BEFORE = -1
_SELDOM = 100_000
"""New objects between two looks of the garbage collector."""


class Wire(Protocol):
    """One direction of a link."""

    def arrive(self, nbytes: float, now: float) -> float:
        """When a message handed over at `now` arrives, infinite if never; calls come in order of `now`."""
        ...


@dataclass(slots=True)
class Processor:
    """Runs one thing at a time."""

    busy_until_s: float = 0.0


@dataclass(slots=True)
class Chip:
    """What a node's work runs on; nodes of one host may share its processor."""

    executor: Executor
    processor: Processor = field(default_factory=Processor)


class Simulator:
    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, int, str, Any]] = []
        """(time, phase, serial, node, event); of a call, which is nobody's event, the node is ""."""
        self._since: dict[str, float] = {}
        """Nodes that crashed -> the serial from which on events are for who came after; infinite while there is nobody.
        """
        self._serial = count()
        self._nodes: dict[str, Node] = {}
        self._chips: dict[str, Chip] = {}
        self._wires: dict[str, dict[str, Wire]] = defaultdict(dict)
        self._observers = tuple(observers)
        self._ended: list[Callable[[str, float], None]] = []
        self._obey: dict[type[Command], Callable[[str, Any], None]] = {
            Start: self._start, Send: self._send, Deliver: self._deliver, Wake: self._wake, Drop: self._drop,
        }  # fmt: skip

    def add(self, name: str, node: Node, chip: Chip) -> None:
        self._nodes[name], self._chips[name] = node, chip
        if name in self._since:
            self._since[name] = next(self._serial)

    def crash(self, name: str) -> None:
        """The node is gone, with its work and with what is on its way to it, until another is added in its name."""
        self._since[name] = INF

    def call(self, at: float, do: Callable[[], None]) -> None:
        """`do()` is called then, before what happens to nodes at that instant."""
        heappush(self._heap, (max(at, self.now), _BEFORE, next(self._serial), "", do))

    def connect(self, a: str, b: str, wire: Wire) -> None:
        """Messages from `a` to `b` take this wire; without one they arrive at once."""
        self._wires[a][b] = wire

    def on_end(self, hear: Callable[[str, float], None]) -> None:
        """`hear(session, now)` is called when a session has ended."""
        self._ended.append(hear)

    def post(self, at: float, node: str, event: Event, phase: Phase = Phase.ARRIVAL) -> None:
        heappush(self._heap, (max(at, self.now), phase, next(self._serial), node, event))

    def run(self, until: float = INF) -> None:
        """Lets everything happen up to `until`, in seconds."""
        with seldom_collecting():
            self._run(until)

    def _run(self, until: float) -> None:
        heap, nodes, obey, since = self._heap, self._nodes, self._obey, self._since
        heard = [observer.handled for observer in self._observers]
        while heap and heap[0][0] <= until:
            now, _, serial, name, event = heappop(heap)
            self.now = now
            if not name:
                event()
                continue
            if since and serial < since.get(name, 0):
                continue
            commands = nodes[name].handle(event, now)
            for handled in heard:
                handled(name, event, now, commands)
            for command in commands:
                if type(command) is not Chunk:  # which is for observers
                    obey[type(command)](name, command)

    def _wake(self, name: str, wake: Wake) -> None:
        self.post(wake.at, name, Woke(wake.timer), Phase.DECISION)

    def _drop(self, name: str, drop: Drop) -> None:
        self._chips[name].executor.drop(drop.session, drop.first)

    def _deliver(self, name: str, deliver: Deliver) -> None:  # noqa: ARG002
        if deliver.ending:
            for hear in self._ended:
                hear(deliver.session, self.now)

    def _start(self, name: str, start: Start) -> None:
        chip, work = self._chips[name], start.work
        processor = chip.processor
        try:
            outcome, seconds = chip.executor.execute(work)
        except OutageError as problem:
            log.warning("%s: %s", name, problem)
            heappush(self._heap, (self.now, _ARRIVAL, next(self._serial), name, Failed(start.job)))
            return
        begin, busy_until_s = self.now, processor.busy_until_s
        if busy_until_s > begin:
            begin = busy_until_s  # abandoned work still occupies its chip
        end = processor.busy_until_s = begin + seconds
        for observer in self._observers:
            observer.ran(name, work, outcome, begin, end)
        heappush(self._heap, (end, _ARRIVAL, next(self._serial), name, Finished(start.job, outcome)))

    def _send(self, name: str, send: Send) -> None:
        now, to, message, nbytes = self.now, send.to, send.message, send.nbytes
        wire = self._wires[name].get(to)
        arrives = wire.arrive(nbytes, now) if wire else now
        for observer in self._observers:
            observer.sent(name, to, message, nbytes, now, arrives)
        if arrives < INF:
            heappush(self._heap, (arrives, _ARRIVAL, next(self._serial), to, Received(message)))


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Messages and records form no cycles, so that a collection of the young, due every 700 new objects, finds nothing:
    an eighth of a run's time.
    """
    before = gc.get_threshold()
    gc.set_threshold(_SELDOM, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
