"""Virtual time: a heap of events, chips that run one thing at a time, links that keep their order.

The heap key is (time, phase, serial): at one instant arrivals come before decisions, and what was posted first comes
first.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from serving.drivers.observer import Observer
from serving.executor import Executor
from serving.messages import (
    INF,
    Command,
    Deliver,
    Drop,
    Event,
    Finished,
    Message,
    Node,
    Received,
    Send,
    Start,
    Wake,
    Woke,
    Work,
)


class Phase(IntEnum):
    ARRIVAL = 0
    DECISION = 1


class Wire(Protocol):
    """One direction of a link."""

    def arrive(self, nbytes: float, now: float) -> float:
        """When a message handed over at `now` arrives; calls come in order of `now`."""
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
        self._heap: list[tuple[float, int, int, str, Event]] = []
        self._serial = count()
        self._nodes: dict[str, Node] = {}
        self._chips: dict[str, Chip] = {}
        self._wires: dict[tuple[str, str], Wire] = {}
        self._observers = tuple(observers)
        self._ended: list[Callable[[str, float], None]] = []

    def add(self, name: str, node: Node, chip: Chip) -> None:
        self._nodes[name], self._chips[name] = node, chip

    def connect(self, a: str, b: str, wire: Wire) -> None:
        """Messages from `a` to `b` take this wire; without one they arrive at once."""
        self._wires[a, b] = wire

    def on_end(self, hear: Callable[[str, float], None]) -> None:
        """`hear(session, now)` is called when a session has ended."""
        self._ended.append(hear)

    def post(self, at: float, node: str, event: Event, phase: Phase = Phase.ARRIVAL) -> None:
        heappush(self._heap, (max(at, self.now), phase, next(self._serial), node, event))

    def run(self, until: float = INF) -> None:
        """Lets everything happen up to `until`, in seconds."""
        heap, nodes, observers, obey = self._heap, self._nodes, self._observers, self._obey
        while heap and heap[0][0] <= until:
            now, _, _, name, event = heappop(heap)
            self.now = now
            commands = nodes[name].handle(event, now)
            for observer in observers:
                observer.handled(name, event, now, commands)
            for command in commands:
                obey(name, command)

    def _obey(self, name: str, command: Command) -> None:
        """The frequent ones first: this runs for every command of every node."""
        match command:
            case Send():
                self._send(name, command.to, command.message, command.nbytes)
            case Start():
                self._start(name, command.job, command.work)
            case Deliver():
                if command.ending:
                    for hear in self._ended:
                        hear(command.session, self.now)
            case Wake():
                self.post(command.at, name, Woke(command.timer), Phase.DECISION)
            case Drop():
                self._chips[name].executor.drop(command.session, command.first)

    def _start(self, name: str, job: int, work: Work) -> None:
        chip = self._chips[name]
        outcome, seconds = chip.executor.execute(work)
        begin = max(self.now, chip.processor.busy_until_s)  # abandoned work still occupies its chip
        end = chip.processor.busy_until_s = begin + seconds
        for observer in self._observers:
            observer.ran(name, work, outcome, begin, end)
        self._arrive(end, name, Finished(job, outcome))

    def _send(self, name: str, to: str, message: Message, nbytes: int) -> None:
        now = self.now
        wire = self._wires.get((name, to))
        arrives = wire.arrive(nbytes, now) if wire else now
        for observer in self._observers:
            observer.sent(name, to, message, nbytes, now, arrives)
        self._arrive(arrives, to, Received(message))

    def _arrive(self, at: float, name: str, event: Event) -> None:
        """`post` for what cannot lie in the past."""
        heappush(self._heap, (at, 0, next(self._serial), name, event))
