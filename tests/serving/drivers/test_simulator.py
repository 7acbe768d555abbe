"""Virtual time: the order of simultaneous events, busy chips, and links that keep their order."""

import gc
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from serving.drivers.simulator import DECISION, ComputeResource, Simulator
from serving.messages import (
    Command,
    CopyCache,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    DropCache,
    EmitTokens,
    Event,
    GenerationRequest,
    MessageReceived,
    MoveCache,
    Outcome,
    Release,
    RequestArrived,
    SendMessage,
    SetTimer,
    StartWork,
    TimerFired,
    Work,
    WorkFinished,
)
from serving.network.link import Link
from serving.outcomes.offline import UntimedExecutor
from tests.support.fake_setup import PoolingEngine, queries

WORK = DraftWork("s", 0, (1,), DraftStopRule(1))
DRAFTED = DraftOutcome((1,), {}, ((1,),), False, 1)


@dataclass
class Script:
    """A node that says what it was told to say at each event, and remembers what it heard when."""

    says: dict[int, list[Command]] = field(default_factory=dict)
    heard: list[tuple[float, Event]] = field(default_factory=list)

    def handle(self, event: Event, now: float) -> Iterable[Command]:
        self.heard.append((now, event))
        return self.says.get(len(self.heard), [])


@dataclass
class Second:
    """Everything takes a second."""

    ran: list[Work] = field(default_factory=list)
    dropped: list[tuple[str, int | None]] = field(default_factory=list)
    moved: list[tuple[str, str]] = field(default_factory=list)
    copied: list[tuple[str, str, int]] = field(default_factory=list)

    def execute(self, work: Work) -> tuple[Outcome, float]:
        self.ran.append(work)
        return DRAFTED, 1.0

    def drop(self, session: str, first: int | None) -> None:
        self.dropped.append((session, first))

    def move(self, session: str, to: str) -> None:
        self.moved.append((session, to))

    def copy(self, session: str, to: str, length: int) -> None:
        self.copied.append((session, to, length))


def begin(name: str = "s") -> RequestArrived:
    return RequestArrived(GenerationRequest(name, (1,), 1))


def one(says: dict[int, list[Command]] | None = None) -> tuple[Simulator, Script, Second]:
    simulator, node, executor = Simulator(), Script(says or {}), Second()
    simulator.add("a", node, ComputeResource(executor))
    return simulator, node, executor


def test_at_one_instant_arrivals_come_before_decisions_in_order_of_posting() -> None:
    simulator, node, _ = one()
    simulator.post(1.0, "a", TimerFired(1), DECISION)
    for name in "pqr":
        simulator.post(1.0, "a", begin(name))
    simulator.post(0.5, "a", TimerFired(2), DECISION)
    simulator.run()
    assert node.heard == [
        (0.5, TimerFired(2)),
        (1.0, begin("p")),
        (1.0, begin("q")),
        (1.0, begin("r")),
        (1.0, TimerFired(1)),
    ]


def test_a_timer_due_now_fires_after_messages_that_arrive_now() -> None:
    simulator, node, _ = one({1: [SetTimer(1.0, 7)]})
    simulator.post(1.0, "a", begin("p"))
    simulator.post(1.0, "a", begin("q"))
    simulator.run()
    assert [event for _, event in node.heard] == [begin("p"), begin("q"), TimerFired(7)]


def test_an_event_in_the_past_is_refused() -> None:
    simulator, node, _ = one({1: [SetTimer(0.2, 7)]})
    simulator.post(1.0, "a", begin())
    simulator.run()
    assert node.heard[-1] == (1.0, TimerFired(7))


def test_a_busy_chip_runs_one_job_after_the_other() -> None:
    simulator, node, _ = one({1: [StartWork(1, WORK), StartWork(2, WORK)]})
    simulator.post(0.5, "a", begin())
    simulator.run()
    assert node.heard[1:] == [(1.5, WorkFinished(1, DRAFTED)), (2.5, WorkFinished(2, DRAFTED))]


def test_nodes_of_one_host_share_its_chip() -> None:
    simulator, a, executor = one({1: [StartWork(1, WORK)]})
    b, shared = Script({1: [StartWork(1, WORK)]}), ComputeResource(executor)
    simulator.add("a", a, shared)
    simulator.add("b", b, shared)
    simulator.post(0.0, "a", begin())
    simulator.post(0.0, "b", begin())
    simulator.run()
    assert [now for now, _ in (a.heard[-1], b.heard[-1])] == [1.0, 2.0]


def test_a_link_is_first_in_first_out_and_charges_bytes() -> None:
    big, small = SendMessage("b", Release("big"), 1_000_000), SendMessage("b", Release("small"), 1)
    simulator, _, _ = one({1: [big, small]})
    b = Script()
    simulator.add("b", b, ComputeResource(Second()))
    simulator.connect("a", "b", Link(8.0, 8.0, delay_ms=100).channel("up", 0))
    simulator.post(0.0, "a", begin())
    simulator.run()
    assert [(pytest.approx(now), event) for now, event in b.heard] == [
        (1.1, MessageReceived(Release("big"))),
        (1.100001, MessageReceived(Release("small"))),
    ]


def test_a_link_that_is_replaced_carries_the_messages_from_then_on() -> None:
    simulator, _, _ = one({number: [SendMessage("b", Release(str(number)), 0)] for number in (1, 2, 3)})
    b, links = Script(), [Link(8.0, 8.0, delay_ms=ms).channel("up", 0) for ms in (100, 200, 300)]
    simulator.add("b", b, ComputeResource(Second()))
    for at, connect in enumerate(
        (
            lambda: simulator.connect_access("b", links[0], links[0]),
            lambda: simulator.connect_access("a", links[1], links[1]),
            lambda: simulator.connect("a", "b", links[2]),
        )
    ):
        connect()
        simulator.post(float(at), "a", begin())
        simulator.run()
    assert [now for now, _ in b.heard] == [pytest.approx(at) for at in (0.1, 1.2, 2.3)]


def test_without_a_link_a_message_arrives_at_once() -> None:
    simulator, _, _ = one({1: [SendMessage("a", Release("s"), 9)]})
    simulator.post(2.0, "a", begin())
    simulator.run()
    assert simulator.now == 2.0


def test_dropped_and_moved_caches_reach_the_executor_and_endings_the_callbacks() -> None:
    ends = [EmitTokens("s", (1,), ("cloud",)), EmitTokens("s", (), (), "complete")]
    simulator, _, executor = one({1: [DropCache("s", None), MoveCache("t", "u"), CopyCache("u", "v", 8), *ends]})
    ended: list[tuple[str, float]] = []
    simulator.on_session_end(lambda session, now: ended.append((session, now)))
    simulator.post(3.0, "a", begin())
    simulator.run()
    assert (executor.dropped, executor.moved, ended) == ([("s", None)], [("t", "u")], [("s", 3.0)])
    assert executor.copied == [("u", "v", 8)]


def test_a_run_can_be_interrupted_and_continued() -> None:
    simulator, node, _ = one({1: [StartWork(1, WORK)]})
    simulator.post(0.0, "a", begin())
    simulator.run(until=0.5)
    assert len(node.heard) == 1
    simulator.run()
    assert len(node.heard) == 2


class Never:
    """A wire that loses all."""

    def arrival_s(self, nbytes: float, now: float) -> float:
        return float("inf")


def test_a_lost_message_is_never_received() -> None:
    simulator, node, _ = one({1: [SendMessage("a", Release("s"), 16)]})
    simulator.connect("a", "a", Never())
    simulator.post(0.0, "a", begin())
    simulator.run()
    assert node.heard == [(0.0, begin())]


class Past:
    """A link of a user's that returns what it likes."""

    def __init__(self, arrives_s: float) -> None:
        self.arrives_s = arrives_s

    def arrival_s(self, nbytes: float, now: float) -> float:
        return self.arrives_s


@pytest.mark.parametrize("arrives_s", [-1.0, 0.01, float("nan")])
def test_a_link_that_delivers_before_it_sends_is_named(arrives_s: float) -> None:
    """Such as one that returns how long a message takes."""
    simulator, _, _ = one({1: [SendMessage("a", Release("s"), 16)]})
    simulator.connect("a", "a", Past(arrives_s))
    simulator.post(1.0, "a", begin())
    with pytest.raises(ValueError, match=rf"Past\.arrival_s returned {arrives_s} for .* sent at 1\.000000 s"):
        simulator.run()


def test_a_failed_run_restores_the_garbage_collector() -> None:
    before = gc.get_threshold()
    simulator, _, _ = one({1: [SendMessage("b", Release("s"), 0)]})
    simulator.post(0.0, "a", begin())
    with pytest.raises(KeyError, match="b"):
        simulator.run()
    assert gc.get_threshold() == before


def test_messages_in_flight_to_a_crashing_node_are_lost() -> None:
    simulator, before, after = Simulator(), Script(), Script()
    simulator.add("a", before, ComputeResource(Second()))
    for at in (1.0, 2.0, 3.0, 4.0):
        simulator.post(at, "a", MessageReceived(Release(f"s{at}")))
    simulator.call_at(2.0, lambda: simulator.crash("a"))  # before what happens to nodes at that instant
    simulator.call_at(3.0, lambda: simulator.add("a", after, ComputeResource(Second())))
    simulator.call_at(3.0, lambda: simulator.post(3.5, "a", MessageReceived(Release("new"))))
    simulator.run()
    assert before.heard == [(1.0, MessageReceived(Release("s1.0")))]
    assert after.heard == [(3.5, MessageReceived(Release("new")))]


def test_the_work_of_a_node_that_crashes_is_lost_with_its_outcome() -> None:
    simulator, before, after = Simulator(), Script({1: [StartWork(7, WORK), SetTimer(1.5, 3)]}), Script()
    chip = Second()
    simulator.add("a", before, ComputeResource(chip))
    simulator.post(1.0, "a", MessageReceived(Release("s")))
    simulator.call_at(1.2, lambda: simulator.crash("a"))
    simulator.call_at(1.3, lambda: simulator.add("a", after, ComputeResource(Second())))
    simulator.run()
    assert chip.ran == [WORK]
    assert before.heard == [(1.0, MessageReceived(Release("s")))]
    assert after.heard == []


def test_a_node_may_crash_again_and_others_go_on() -> None:
    simulator, other, lives = Simulator(), Script(), [Script() for _ in range(3)]
    simulator.add("b", other, ComputeResource(Second()))
    simulator.add("a", lives[0], ComputeResource(Second()))
    for i in (1, 2):
        simulator.call_at(10.0 * i, lambda: simulator.crash("a"))
        simulator.call_at(10.0 * i + 1, lambda i=i: simulator.add("a", lives[i], ComputeResource(Second())))  # type: ignore[misc]
    for at in (5.0, 10.5, 15.0, 20.5, 25.0):
        simulator.call_at(at, lambda at=at: simulator.post(at, "a", MessageReceived(Release(f"{at}"))))  # type: ignore[misc]
        simulator.post(at, "b", MessageReceived(Release(f"{at}")))
    simulator.run()
    assert [now for life in lives for now, _ in life.heard] == [5.0, 15.0, 25.0]
    assert [now for now, _ in other.heard] == [5.0, 10.5, 15.0, 20.5, 25.0]


class Drafter:
    """Drafts for each request that arrives."""

    def handle(self, event: Event, now: float) -> list[Command]:
        if not isinstance(event, RequestArrived):
            return []
        return [StartWork(1, DraftWork(event.request.session, 0, event.request.prompt, DraftStopRule(3)))]


def test_a_draft_of_a_crashed_node_leaves_the_pool() -> None:
    """Else its session could not draft on the same engine when the node is there again."""
    engine, simulator, running = PoolingEngine(), Simulator([]), list[int]()
    for name in ("a", "b"):
        simulator.add(name, Drafter(), ComputeResource(UntimedExecutor(engine)))
    for name, query in zip(("a", "b"), queries(2), strict=True):
        simulator.post(0.0, name, RequestArrived(query.request))
    simulator.call_at(0.5, lambda: running.append(len(engine.running)))
    simulator.call_at(0.5, lambda: simulator.crash("a"))
    simulator.call_at(0.5, lambda: running.append(len(engine.running)))
    simulator.run()
    assert running == [2, 0]  # the drafts of a pool advance together
    assert engine.most == 2
