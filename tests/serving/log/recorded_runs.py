"""Recorded runs of the fake world, for the tests of the log."""

from pathlib import Path
from typing import Any

from serving.drivers.observer import Observer
from serving.drivers.simulator import Simulator
from serving.log.event_log import EventLog, LogEntry
from serving.log.reader import read_entries
from serving.messages import Command, Event, Message, Outcome, Work
from serving.metrics.recorder import Recorder
from tests.support.policies import policy
from tests.support.simulated_nodes import World, world


class Only:
    """An observer that is told only of one process's nodes."""

    def __init__(self, names: set[str], inner: Observer) -> None:
        self.names, self.inner = names, inner

    def event_handled(self, node: str, event: Event, now: float, commands: Any) -> None:
        if node in self.names:
            self.inner.event_handled(node, event, now, commands)

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:
        if node in self.names:
            self.inner.work_done(node, work, outcome, begin_s, end_s)

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:
        if node in self.names:
            self.inner.message_sent(node, to, message, nbytes, now, arrives_s)


class Later:
    """An observer on a clock that shows `ahead_s` more."""

    def __init__(self, ahead_s: float, inner: Observer) -> None:
        self.ahead_s, self.inner = ahead_s, inner

    def event_handled(self, node: str, event: Event, now: float, commands: list[Command]) -> None:
        self.inner.event_handled(node, event, now + self.ahead_s, commands)

    def work_done(self, node: str, work: Work, outcome: Outcome, begin_s: float, end_s: float) -> None:
        self.inner.work_done(node, work, outcome, begin_s + self.ahead_s, end_s + self.ahead_s)

    def message_sent(self, node: str, to: str, message: Message, nbytes: int, now: float, arrives_s: float) -> None:
        self.inner.message_sent(node, to, message, nbytes, now + self.ahead_s, arrives_s + self.ahead_s)


def watched(observers: list[Observer], name: str = "synera", **how: Any) -> World:
    """A world that has run with these observers."""
    how = {"devices": 3, "calls_each": 2} | how
    drive = lambda own: Simulator([*own, *observers])  # noqa: E731
    return world(policy(name, **how.pop("override", {})), drive=drive, **how).run()


def recorded(path: Path, name: str = "synera", **how: Any) -> tuple[World, list[LogEntry]]:
    """A world that wrote an event log at `path`, and the entries read back."""
    with EventLog(path, {"layers": 8}) as event_log:
        w = watched([event_log], name, **how)
    return w, list(read_entries(path))


def recorder(w: World | None = None, devices: int = 3) -> Recorder:
    return Recorder([f"device-{i}" for i in range(devices)])
