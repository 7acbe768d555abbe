"""The reserved work of a node, and what the nodes that choose among nodes know of it."""

from typing import Any

import pytest

from serving.core.kv_accounting import KVAccounting
from serving.hardware.estimator import Estimator
from serving.hardware.latency import LinearLatency
from serving.messages import (
    INF,
    Hop,
    LoadReport,
    MessageReceived,
    PeerLost,
    PeerRestored,
    Release,
    Request,
    SendMessage,
    SequenceSlice,
    SliceOutcome,
    Span,
    TimerFired,
    Verdict,
    WorkFinished,
)
from serving.nodes.hop_path import NodeSelector
from serving.nodes.reservations import Reservations
from serving.nodes.worker import Worker
from serving.policy.slots.dispatch import Affinity, HypSched, RoundRobin
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.scheduler import ContinuousBatch, Fifo
from tests.support.fake_pair import LAYERS
from tests.support.policies import policy

SPAN = Span(0, LAYERS, embedding=True, lm_head=True)
ROUTE = (Hop("near", SPAN),)
ESTIMATOR = Estimator(LinearLatency(a_s=0.01, b_compute_s=0.0, b_read_s=0.0, c_s=0.1, layers=LAYERS, source="by hand"))
"""A pass takes 0.1 s, and 0.01 s for each row: 0.11 s with one."""


def question(
    session: str = "a", start: int = 0, n: int = 10, budget: int = 5, round_: int = 0, device: str = "device-0"
) -> Request:
    return Request(
        round_, SequenceSlice(session, start, n, tuple(range(n)), 0, "greedy"), ROUTE, 0, ("near-0",), device, budget
    )


def queued_s(rows: int, steps: int) -> float:
    """A pass with so many rows, and passes of one."""
    return (steps + (rows > 0)) * 0.11 + max(0, rows - 1) * 0.01


# The book.


def book(*asked: Request) -> Reservations:
    made = Reservations(ESTIMATOR)
    for m in asked:
        made.reserve(m, SPAN)
    return made


def told(made: Reservations, capacity: float = INF, block: int = 1) -> LoadReport:
    return made.load_report("near-0", KVAccounting(capacity, keep_caches=True, block_tokens=block))


def test_the_reserved_time_shrinks_as_a_request_proceeds() -> None:
    """Eq. 19: its prompt, then a pass for each token that may still come."""
    made = book(question(n=10, budget=5))
    seen = [told(made).queued_s]
    made.complete("a", 10)
    seen.append(told(made).queued_s)
    for i in range(4):
        made.reserve(question(start=10 + i, n=1, budget=4 - i), SPAN)
        seen.append(told(made).queued_s)
        made.complete("a", 1)
        seen.append(told(made).queued_s)
    left = [(10, 4), (0, 4), (1, 3), (0, 3), (1, 2), (0, 2), (1, 1), (0, 1), (1, 0), (0, 0)]
    assert seen == pytest.approx([queued_s(*each) for each in left])


def test_reservations_add_up_over_chunks() -> None:
    made = book(question(n=6), question(start=6, n=4))
    assert told(made).queued_s == pytest.approx(queued_s(10, 4))
    made.complete("a", 6)
    assert told(made).queued_s == pytest.approx(queued_s(4, 4))


def test_a_new_attempt_replaces_the_old_reservation() -> None:
    made = book(question(n=6), question(start=6, n=4, round_=1))
    assert told(made).queued_s == pytest.approx(queued_s(4, 4))


def test_reservations_add_up_over_sessions() -> None:
    made = book(question("a"), question("b", n=3, budget=1))
    assert told(made).queued_s == pytest.approx(queued_s(10, 4) + queued_s(3, 0))
    assert made.release("a")
    assert not made.release("a")
    assert told(made).queued_s == pytest.approx(queued_s(3, 0))
    assert len(made) == 1


def test_reserve_returns_true_for_a_new_session() -> None:
    made = Reservations(ESTIMATOR)
    assert made.reserve(question(), SPAN)
    assert not made.reserve(question(start=10, n=1, budget=4), SPAN)
    assert made.reserve(question("b"), SPAN)


def test_memory_is_reserved_for_the_longest_answer() -> None:
    """Memory in whole blocks, from the first pass on; the last token is never computed."""
    made = book(question("a", n=10, budget=5), question("b", n=3, budget=1))
    assert told(made, capacity=100).free_tokens == 100 - 14 - 3
    assert told(made, capacity=128, block=16).free_tokens == 128 - 16 - 16
    assert told(made).free_tokens == INF
    made.reserve(question("a", start=10, n=1, budget=4), SPAN)
    assert told(made, capacity=100).free_tokens == 100 - 14 - 3


def test_speeds_are_the_estimators() -> None:
    assert (told(book()).per_token_s, told(book()).pass_s) == (0, 0)
    assert not book().has_timing
    assert told(book(question())).per_token_s == pytest.approx(0.01)
    assert told(book(question())).pass_s == pytest.approx(0.11)


# Reports.


def worker(*watchers: str, capacity: float = INF, **override: Any) -> Worker:
    slots = {
        "scheduler": ContinuousBatch(),
        "kv_cache": PrefixCaching(block_tokens=1),
        "dispatch": HypSched(),
    } | override
    return Worker(
        "near-0", policy("sled", **slots), {"near": ("near-0", "near-1")}, watchers, capacity, estimator=ESTIMATOR
    )


def reports(said: list[Any]) -> list[tuple[str, LoadReport]]:
    return [(c.to, c.message) for c in said if isinstance(c, SendMessage) and isinstance(c.message, LoadReport)]


def hear(w: Worker, m: Any, now: float = 0.0) -> list[tuple[str, LoadReport]]:
    return reports(list(w.handle(MessageReceived(m), now)))


def run(w: Worker, now: float) -> list[tuple[str, LoadReport]]:
    """The batch that waits, from its start to `now`."""
    w.handle(TimerFired(w.timer), now)
    return reports(list(w.handle(WorkFinished(w.job, (SliceOutcome(Verdict(0, 7), None),) * len(w.running)), now)))


def test_a_new_session_is_reported_to_all_watchers_at_once() -> None:
    w = worker("device-0", "device-1", capacity=100)
    (first, backlog), (second, other) = hear(w, question())
    assert (first, second, other) == ("device-0", "device-1", backlog)
    assert (backlog.node, backlog.free_tokens) == ("near-0", 86)
    told = [backlog.queued_s, backlog.per_token_s, backlog.pass_s]
    assert told == pytest.approx([queued_s(10, 4), 0.01, 0.11])


def test_without_new_sessions_reports_are_limited_to_four_a_second() -> None:
    w = worker("device-0")
    hear(w, question(budget=30))
    moments = [0.1 * i for i in range(1, 13)]
    times = [round(now, 1) for now in moments if run(w, now)]
    assert times == [0.3, 0.6, 0.9, 1.2]


def test_a_released_session_is_reported_at_once() -> None:
    w = worker("device-0")
    hear(w, question())
    ((_, backlog),) = hear(w, Release("a"))
    assert backlog.queued_s == 0
    assert hear(w, Release("a")) == []


def test_a_restored_watcher_gets_a_report_if_timing_is_known() -> None:
    w = worker("device-0")
    assert reports(list(w.handle(PeerRestored("device-0"), 0.0))) == []  # it does not know yet how fast it is
    hear(w, question())
    ((to, backlog),) = reports(list(w.handle(PeerRestored("device-0"), 5.0)))
    assert (to, backlog.queued_s) == ("device-0", pytest.approx(queued_s(10, 4)))
    assert reports(list(w.handle(PeerRestored("far-0"), 6.0))) == []


def test_without_watchers_there_are_no_reports_and_no_reservations() -> None:
    w = worker()
    assert hear(w, question()) == []
    assert run(w, 3.0) == []
    assert not len(w.reservations)


def test_expired_leases_release_reservations() -> None:
    w = worker("device-1")
    hear(w, question())
    run(w, 0.2)
    w.queue.clear()
    w.handle(PeerLost("device-0"), 1.0)
    (timer,) = w.session_registry.leases
    ((_, backlog),) = reports(list(w.handle(TimerFired(timer), 40.0)))
    assert backlog.queued_s == 0
    assert not len(w.reservations)


# Choosing a node.


NEAR = {"near": ("near-0", "near-1", "near-2"), "lone": ("lone-0",)}
ROWS = SequenceSlice("s", 0, 10, tuple(range(10)), 0, "greedy")


def spoken(chooser: NodeSelector, **waits_s: float) -> None:
    for i, (_, wait_s) in enumerate(sorted(waits_s.items())):
        chooser.load_reports[f"near-{i}"] = LoadReport(f"near-{i}", wait_s, 0.01, 0.11, 1000)


def test_requests_sent_since_the_last_report_count_as_load() -> None:
    """A burst is spread, though no report can arrive in between."""
    chooser = NodeSelector(NEAR, HypSched(), "device-0")
    spoken(chooser, a=0.0, b=0.1, c=5.0)
    assert [chooser.choose("near", ROWS, 5) for _ in range(4)] == ["near-0", "near-1", "near-0", "near-1"]
    assert chooser.load_reports["near-0"].queued_s == pytest.approx(2 * queued_s(10, 4))
    assert chooser.load_reports["near-0"].free_tokens == 1000 - 2 * 14
    assert chooser.load_reports["near-2"].queued_s == 5.0


def test_a_cache_takes_whole_blocks() -> None:
    chooser = NodeSelector(NEAR, HypSched(), "device-0", 16)
    spoken(chooser, a=0.0, b=0.1, c=5.0)
    chooser.load_reports["near-0"] = LoadReport("near-0", 0.0, 0.01, 0.11, 15)
    assert chooser.choose("near", ROWS, 5) == "near-1"
    assert chooser.load_reports["near-1"].free_tokens == 1000 - 16


def test_a_report_replaces_the_estimated_load() -> None:
    chooser = NodeSelector(NEAR, HypSched(), "device-0")
    spoken(chooser, a=0.0, b=0.1, c=0.2)
    chooser.choose("near", ROWS, 5)
    chooser.load_reports["near-0"] = LoadReport("near-0", 0.0, 0.01, 0.11, 1000)
    assert chooser.choose("near", ROWS, 5) == "near-0"


def test_a_burst_is_spread_evenly_over_nodes_without_reports() -> None:
    chooser = NodeSelector(NEAR, HypSched(), "device-0")
    assert [chooser.choose("near", ROWS, 5) for _ in range(6)] == ["near-0", "near-1", "near-2"] * 2


def test_the_speed_of_nodes_without_reports_is_known() -> None:
    """The compute of each node is an input of Algorithm 2 (Hyperion): a slow idle node is not taken for a fast one."""
    idle = {
        name: LoadReport(name, 0.0, 0.01, pass_s, 1000)
        for name, pass_s in zip(NEAR["near"], (0.5, 0.1, 0.2), strict=True)
    }
    chooser = NodeSelector(NEAR, HypSched(), "device-0", idle_reports=idle)
    chosen = [chooser.choose("near", ROWS, 5) for _ in range(8)]
    assert [chosen.count(name) for name in NEAR["near"]] == [1, 5, 2]  # a task takes 2.59, 0.59, 1.09 s
    assert chosen[0] == "near-1"
    chooser.mark_lost(PeerLost("near-1"))
    chooser.mark_restored(PeerRestored("near-1"))
    assert chooser.choose("near", ROWS, 5) == "near-1"


def test_a_lost_node_is_not_chosen_and_has_no_load_when_restored() -> None:
    chooser = NodeSelector(NEAR, HypSched(), "device-0")
    spoken(chooser, a=9.0, b=1.0, c=2.0)
    chooser.mark_lost(PeerLost("near-1"))
    assert chooser.choose("near", ROWS, 5) == "near-2"
    assert chooser.mark_restored(PeerRestored("near-1"))
    assert "near-1" not in chooser.load_reports
    assert chooser.choose("near", ROWS, 5) == "near-1"


def test_a_tier_is_reachable_while_one_node_is() -> None:
    chooser = NodeSelector(NEAR, HypSched(), "device-0")
    chooser.mark_lost(PeerLost("near-0"))
    chooser.mark_lost(PeerLost("near-1"))
    assert chooser.reachable("near")
    assert chooser.reachable_nodes(["near", "lone", "near"]) == ["near-2", "lone-0"]
    assert chooser.choose("near", ROWS, 5) == "near-2"
    chooser.mark_lost(PeerLost("near-2"))
    assert not chooser.reachable("near")
    assert chooser.reachable("lone")
    assert chooser.choose("near", ROWS, 5) in chooser.lost_nodes  # a node's name, for requests that wait for it


def test_a_single_node_is_chosen_without_dispatch() -> None:
    class Unasked(RoundRobin):
        def choose(self, task: Any, backlogs: Any) -> str:
            raise AssertionError("there is nothing to choose")

    chooser = NodeSelector(NEAR, Unasked(), "device-0")
    assert chooser.choose("lone", ROWS, 1) == "lone-0"
    assert chooser.choose("cloud-0", ROWS, 1) == "cloud-0"


def test_affinity_gets_the_name_of_its_owner() -> None:
    """All requests of a device go to its node, which others need not share; to another one only while it is lost."""
    choosers = {f"device-{i}": NodeSelector(NEAR, Affinity(), f"device-{i}") for i in range(20)}
    own = {name: Affinity().node_of(name, NEAR["near"]) for name in choosers}
    assert {*own.values()} == {*NEAR["near"]}
    for name, chooser in choosers.items():
        assert {chooser.choose("near", ROWS, 1) for _ in range(5)} == {own[name]}
        chooser.mark_lost(PeerLost("near-1"))
        assert (chooser.choose("near", ROWS, 1) == own[name]) == (own[name] != "near-1")
        chooser.mark_restored(PeerRestored("near-1"))
        assert chooser.choose("near", ROWS, 1) == own[name]


def test_round_robin_starts_at_different_nodes_by_device() -> None:
    first = {NodeSelector(NEAR, RoundRobin(), f"device-{i}").choose("near", ROWS, 1) for i in range(20)}
    assert first == {*NEAR["near"]}


def test_fifo_keeps_the_order_of_sessions_over_passes() -> None:
    """A session that came first goes first in every pass, not only in its first."""
    w = worker(scheduler=Fifo())
    for session in "ab":
        w.handle(MessageReceived(question(session, budget=3)), 0.0 if session == "a" else 0.1)
    ran = []
    for i in range(6):
        w.handle(TimerFired(w.timer), 1.0 + i)
        ran += [rows.session for _, rows in w.running]
        w.handle(WorkFinished(w.job, (SliceOutcome(Verdict(0, 7), None),)), 1.5 + i)
    assert ran == [*"aaabbb"]
