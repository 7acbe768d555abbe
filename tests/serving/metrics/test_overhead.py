"""What deciding costs is counted by node, and changes nothing; the clock of these tests goes a second a look."""

from collections.abc import Sequence
from itertools import count

import pytest

from serving.drivers.simulator import ComputeResource, Simulator
from serving.messages import (
    Command,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    Event,
    ForwardWork,
    MessageReceived,
    Outcome,
    Release,
    SendMessage,
    SequenceSlice,
    SetTimer,
    SliceOutcome,
    Span,
    StartWork,
    TimerFired,
    Verdict,
    Work,
    WorkFinished,
)
from serving.metrics import overhead
from serving.metrics.overhead import OverheadTimer

ROWS = SequenceSlice("s", 0, 1, (1,), 0, "greedy")
DRAFT, FORWARD = DraftWork("s", 0, (1,), DraftStopRule(1)), ForwardWork(Span(0, 1, True, True), (ROWS,), ("last",))


class Draws:
    """A device: drafts once woken, then tells the cloud."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def handle(self, event: Event, now: float) -> Sequence[Command]:
        self.heard.append(event)
        if isinstance(event, TimerFired):
            return [StartWork(1, DRAFT)]
        return [SendMessage("cloud-0", Release("s"), 8)] if isinstance(event, WorkFinished) else []


class Asks:
    """A cloud: two forwards, one after the other."""

    def __init__(self) -> None:
        self.left = 2

    def handle(self, event: Event, now: float) -> Sequence[Command]:
        if isinstance(event, MessageReceived | WorkFinished) and self.left:
            self.left -= 1
            return [StartWork(1, FORWARD), SetTimer(now + 1, 1)]
        return []


class Answers:
    def __init__(self) -> None:
        self.dropped: list[tuple[str, int | None]] = []

    def execute(self, work: Work) -> tuple[Outcome, float]:
        if isinstance(work, DraftWork):
            return DraftOutcome((1,), {}, ((1,),), False, 1), 0.5
        return (SliceOutcome(Verdict(0, 1), None),), 0.25

    def drop(self, session: str, first: int | None) -> None:
        self.dropped.append((session, first))

    def move(self, session: str, to: str) -> None:
        raise NotImplementedError

    def copy(self, session: str, to: str, length: int) -> None:
        raise NotImplementedError


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[OverheadTimer, Simulator, Draws]:
    monkeypatch.setattr(overhead, "perf_counter", count().__next__)
    simulator, device = Simulator(), Draws()
    made = OverheadTimer(simulator)
    made.add("device-0", device, ComputeResource(Answers()))
    made.add("cloud-0", Asks(), ComputeResource(Answers()))
    made.post(0.0, "device-0", TimerFired(0))
    simulator.run()
    return made, simulator, device


def test_every_event_and_every_work_is_counted(watched: tuple[OverheadTimer, Simulator, Draws]) -> None:
    made, simulator, device = watched
    assert [type(event) for event in device.heard] == [TimerFired, WorkFinished]
    assert simulator.now == 1.75  # half a second's draft, a quarter's forward, and a second until the last wake
    assert made.decision_s == {"device-0": 2, "cloud-0": 5}  # Received, then Finished and Woke twice each
    assert made.compute_s == {"device-0": 1, "cloud-0": 2}


def test_overhead_metrics_are_per_token_and_relative_to_work(watched: tuple[OverheadTimer, Simulator, Draws]) -> None:
    made, _, _ = watched
    assert made.metrics(["device-0"], ["cloud-0"], 4) == {"device_ms_per_token": 500.0, "cloud_share": 2.5}


def test_without_a_cloud_there_is_no_cloud_share(watched: tuple[OverheadTimer, Simulator, Draws]) -> None:
    made, _, _ = watched
    assert made.metrics(["device-0"], [], 0) == {"device_ms_per_token": 2000.0}


def test_timing_the_overhead_still_drops_caches() -> None:
    executor, added = Answers(), {}

    class Stage:
        def add(self, name: str, node: object, chip: ComputeResource) -> None:
            added[name] = chip

        def connect(self, a: str, b: str, wire: object) -> None:
            added[a] = wire

        def connect_access(self, name: str, outgoing: object, incoming: object) -> None:
            added[name] = outgoing, incoming

        def post(self, at: float, node: str, event: object) -> None: ...

    made, chip = OverheadTimer(Stage()), ComputeResource(executor)
    made.add("cloud-0", Asks(), chip)
    made.connect("a", "b", "wire")
    made.connect_access("c", "up", "down")
    added["cloud-0"].executor.drop("s", 0)
    assert executor.dropped == [("s", 0)]
    assert added["cloud-0"].processor is chip.processor
    assert (added["a"], added["c"]) == ("wire", ("up", "down"))
