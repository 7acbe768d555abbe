"""A model over tiers of nodes that may fail: the model's text, no request lost, no state left."""

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.deployment.topology import Topology
from serving.messages import (
    INF,
    CacheMiss,
    DropCache,
    EmitTokens,
    ForwardWork,
    LoadReport,
    MessageReceived,
    PeerLost,
    PeerRestored,
    Release,
    Reply,
    Request,
    SamplingParams,
    SendMessage,
    SequenceSlice,
    SliceOutcome,
    StartWork,
    TensorRef,
    TimerFired,
    WorkFinished,
)
from serving.network.channel import LinkDirection
from serving.nodes.worker import Worker
from serving.policy.slots.dispatch import Affinity, EarliestFinish, HypSched, RandomDispatch, RoundRobin
from serving.policy.slots.prefill import ChunkedPrefill, WholePrefill
from serving.policy.slots.scheduler import ContinuousBatch, Fifo, UpwardRank
from tests.support.fake_pair import LAYERS
from tests.support.simulated_tiers import (
    NETWORK,
    FailingTopology,
    TieredRun,
    assert_all_answered,
    assert_no_state_left,
    queries,
    tiered_setup,
    tiers,
)

NODES_PER_TIER = {"two": (2, 2), "three": (2, 3, 2), "four": (2, 2, 2, 2), "one node each": (1, 1, 1)}
NAMES = ("hyperion", "sled", "hat")


def forwards(run: TieredRun, node: str, session: str) -> list[tuple[float, float, Any]]:
    """(begins, ends, rows) of what a node ran for a session."""
    found = []
    begun: dict[int, tuple[float, Any]] = {}
    for name, event, now, said in run.log.entries:
        if name != node:
            continue
        if isinstance(event, WorkFinished) and event.job in begun:
            since, work = begun.pop(event.job)
            found += [(since, now, seq) for seq in work.slices if seq.session == session]
        begun |= {c.job: (now, c.work) for c in said if isinstance(c, StartWork) and isinstance(c.work, ForwardWork)}
    return found


def received(run: TieredRun, kind: type) -> list[tuple[str, float, Any]]:
    """(node, when, message) of all that arrived."""
    return [
        (node, now, event.message)
        for node, event, now, _ in run.log.entries
        if isinstance(event, MessageReceived) and isinstance(event.message, kind)
    ]


def nodes_of(run: TieredRun, session: str) -> list[str]:
    """The nodes of the tiers that ran something for a session."""
    return [name for name in run.workers if forwards(run, name, session)]


# The text.


@pytest.mark.parametrize("every_s", [None, 0.05])
@pytest.mark.parametrize("bed", NODES_PER_TIER)
@pytest.mark.parametrize("name", NAMES)
def test_a_model_over_tiers_writes_the_unsplit_models_text(name: str, bed: str, every_s: float | None) -> None:
    """Several requests at once, each node with caches of its own, of which a hole would be an error."""
    run = TieredRun(tiered_setup(tiers(*NODES_PER_TIER[bed]), name), queries(8, every_s=every_s)).run()
    assert_all_answered(run)
    assert_no_state_left(run)


@pytest.mark.parametrize("name", NAMES)
def test_sampled_text_over_tiers_is_the_unsplit_models(name: str) -> None:
    """The fake target's draws follow from its prefix; draft distributions reach the node of the head."""
    run = TieredRun(
        tiered_setup(tiers(2, 3, 2), name), queries(6, every_s=0.05, sampling=SamplingParams(0.8, 0, 1.0, 3))
    ).run()
    assert_all_answered(run)
    assert_no_state_left(run)


def test_every_node_runs_its_tiers_layers_and_gets_work() -> None:
    """Three devices have a task each under way at a time."""
    tiered = tiered_setup(tiers(2, 3, 2), devices=3)
    run = TieredRun(tiered, queries(9, devices=3, every_s=0.01)).run()
    spans = {hop.node: hop.span for hop in run.topology.hops}
    assert [(span.start_layer, span.end_layer) for span in spans.values()] == [(0, 3), (3, 6), (6, 8)]
    ran = {(node, c.work.span) for node, _, _, said in run.log.entries for c in said
           if isinstance(c, StartWork) and isinstance(c.work, ForwardWork)}  # fmt: skip
    assert ran == {(node, spans[tier]) for node, tier in run.topology.tier_of.items()}


@pytest.mark.parametrize(
    "scheduler", [Fifo(), Fifo(3), UpwardRank(), ContinuousBatch(), ContinuousBatch(4, 8)], ids=repr
)
@pytest.mark.parametrize(
    "dispatch", [HypSched(), EarliestFinish(), RandomDispatch(4), RoundRobin(), Affinity()], ids=repr
)
@pytest.mark.parametrize("name", ["hyperion", "sled"])
def test_any_scheduler_and_dispatch_serve_tiers(name: str, dispatch: Any, scheduler: Any) -> None:
    """A chunk of 8 cuts verifications that are made anew, whose drafts go on to the head."""
    override = {"dispatch": dispatch, "scheduler": scheduler, "prefill": ChunkedPrefill(5, "first")}
    tiered = tiered_setup(tiers(2, 2), name, override=override)
    run = TieredRun(tiered, queries(5, every_s=0.02, prompt=16), {"nx-0": [(0.9, 1.1)]}).run()
    assert_all_answered(run)
    assert_no_state_left(run)


def test_hidden_states_cross_each_link_once_and_the_token_comes_back_over_all() -> None:
    """A row of Llama-2-7B's hidden states is 4,096 halves; a new token starts over at the first tier."""
    run = TieredRun(tiered_setup(tiers(1, 1, 1), devices=1), queries(1, 1, limit=3)).run()
    row, header = 2 * 4096, 16
    said = [(node, c.to, c.nbytes) for node, _, _, commands in run.log.entries for c in commands
            if isinstance(c, SendMessage) and isinstance(c.message, Request | Reply)]  # fmt: skip
    turn = [("nano-0", "nx-0", header + row), ("nx-0", "agx-0", header + row), ("agx-0", "device-0", header + 4),
            ("agx-0", "nano-0", header + 4)]  # fmt: skip
    first = [("nano-0", "nx-0", header + 12 * row), ("nx-0", "agx-0", header + 12 * row)]
    assert said == [("device-0", "nano-0", header + 4 * 12), *first, *turn[2:], *turn, *turn[:3]]


def test_transfers_between_tiers_take_the_links_time() -> None:
    run = TieredRun(tiered_setup(tiers(1, 1, 1), devices=1), queries(1, 1, limit=2)).run()
    asked = [(node, now, m) for node, now, m in received(run, Request) if m.slice.num_tokens == 12]
    left = [forwards(run, node, "s0")[0][1] for node in ("nano-0", "nx-0")]
    for (_, now, m), leaves_s in zip(asked[1:], left, strict=True):
        assert now - leaves_s == pytest.approx(NETWORK.mean_transfer_s(16 + m.slice.nbytes, "up"))
    ((_, back_s, _),) = [each for each in received(run, Request) if each[0] == "nano-0" and each[2].slice.start]
    began_s = forwards(run, "agx-0", "s0")[0][1]
    assert back_s - began_s == pytest.approx(2 * NETWORK.mean_transfer_s(20, "down"))
    reply_s = received(run, Reply)[0][1]
    assert reply_s - began_s == pytest.approx(3 * NETWORK.mean_transfer_s(20, "down"))


# A node fails.


STAGES = ("prefill", "decode", "between")


@cache
def undisturbed(name: str) -> TieredRun:
    return TieredRun(tiered_setup(tiers(2, 2, 2), name), queries(4, every_s=0.05, limit=16)).run()


def moment(undisturbed_run: TieredRun, node: str, session: str, stage: str) -> float:
    """When a node is at that stage of a request, in a run in which nothing fails."""
    runs = forwards(undisturbed_run, node, session)
    if stage == "between":
        return (runs[2][1] + runs[3][0]) / 2
    begins_s, ends_s, _ = runs[0 if stage == "prefill" else 3]
    return (begins_s + ends_s) / 2


@pytest.mark.parametrize("long_s", [0.01, 0.4])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("tier", ["nano", "nx", "agx"])
@pytest.mark.parametrize("name", NAMES)
def test_a_node_is_killed_at_any_stage_of_a_request(name: str, tier: str, stage: str, long_s: float) -> None:
    """An outage under 50 ms is not detected; it shows when the node is back without its caches."""
    undisturbed_run = undisturbed(name)
    (node,) = [node for node in nodes_of(undisturbed_run, "s0") if node.startswith(tier)]
    at = moment(undisturbed_run, node, "s0", stage)
    run = TieredRun(undisturbed_run.topology.setup, undisturbed_run.queries, {node: [(at, at + long_s)]}).run(at - 1e-6)
    assert "s0" in {session for session, _ in run.workers[node].kv_accounting.cached_lens}
    before = run.workers[node]
    run.run()
    assert run.workers[node] is not before
    assert_all_answered(run)
    assert_no_state_left(run)
    told = {(name, round(now - at, 6)) for name, event, now, _ in run.log.entries if event == PeerLost(node)}
    others = {n for n in run.topology.workers if not n.startswith(tier)}
    assert told == {(name, min(0.05, long_s)) for name in (*run.topology.devices, *others)}


def test_the_work_of_a_dead_node_is_recomputed_by_another() -> None:
    tiered, asked = tiered_setup(tiers(2, 2), devices=1), queries(1, 1, limit=16)
    undisturbed_run = TieredRun(tiered, asked).run()
    first, last = nodes_of(undisturbed_run, "s0")
    at = moment(undisturbed_run, last, "s0", "decode")
    run = TieredRun(tiered, asked, {last: [(at, 4000.0)]}).run(3000.0)
    (other,) = {"nx-0", "nx-1"} - {last}
    assert_all_answered(run)
    rows = [rows for _, _, rows in forwards(run, other, "s0")]
    written = sum(now < at for _, now, _ in received(run, Reply))
    assert (rows[0].start, rows[0].num_tokens) == (0, 12 + written)
    assert nodes_of(run, "s0") == [first, *sorted((last, other))]  # the tier before is asked where it was


def test_the_first_tiers_node_keeps_its_requests_when_a_later_one_fails() -> None:
    tiered, asked = tiered_setup(tiers(3, 3), devices=1), queries(3, 1, every_s=0.01)
    undisturbed_run = TieredRun(tiered, asked).run()
    at = moment(undisturbed_run, nodes_of(undisturbed_run, "s0")[1], "s0", "decode")
    run = TieredRun(tiered, asked, {nodes_of(undisturbed_run, "s0")[1]: [(at, at + 0.3)]}).run()
    for query in asked:
        homes = [node for node in nodes_of(run, query.request.session) if node.startswith("nano")]
        assert homes == [node for node in nodes_of(undisturbed_run, query.request.session) if node.startswith("nano")]


@pytest.mark.parametrize("tier", ["nano", "nx", "agx"])
@pytest.mark.parametrize("name", NAMES)
def test_requests_wait_until_a_lost_tier_is_back(name: str, tier: str) -> None:
    tiered, asked = tiered_setup(tiers(2, 2, 2), name), queries(5, every_s=0.1)
    down_s, up_s = 0.6, 9.6
    run = TieredRun(tiered, asked, {node: [(down_s, up_s)] for node in (f"{tier}-0", f"{tier}-1")}).run()
    assert_all_answered(run)
    assert_no_state_left(run)
    seen = [now for node, _, now, said in run.log.entries for c in said if isinstance(c, EmitTokens) and c.tokens]
    assert any(now < down_s for now in seen)
    assert not any(down_s + 3.0 < now < up_s for now in seen)
    assert any(now > up_s for now in seen)
    assert run.simulator.now < up_s + 60


def test_the_device_is_notified_once_a_node_of_a_lost_tier_is_back() -> None:
    """A worker once wrote to the tier's name, which is nobody's; a device that heard at once, and reached a node that
    its neighbour did not reach yet, once spent all its attempts in a moment.
    """
    tiered, asked = tiered_setup(tiers(1, 1), devices=1), queries(1, 1)
    undisturbed_run = TieredRun(tiered, asked).run()
    begins_s, ends_s, _ = forwards(undisturbed_run, "nano-0", "s0")[0]
    at = ends_s - 0.051  # noticed while the first tier computes
    run = TieredRun(tiered, asked, {"nx-0": [(at, at + 5.0)]}).run()
    assert begins_s < at
    missed = [(node, now, m.node) for node, now, m in received(run, CacheMiss)]
    assert [(node, by) for node, _, by in missed] == [("device-0", "nano-0")]
    assert missed[0][1] >= at + 5.0
    assert {c.to for c in run.log.commands(SendMessage)} <= {*run.workers, *run.devices}
    assert_all_answered(run)
    assert_no_state_left(run)


def test_nodes_after_a_lost_one_drop_the_sessions_that_came_through_it() -> None:
    """The session goes another way, on which they need not be."""
    tiered, asked = tiered_setup(tiers(1, 2, 2), devices=1), queries(1, 1, limit=24)
    undisturbed_run = TieredRun(tiered, asked).run()
    _, middle, last = nodes_of(undisturbed_run, "s0")
    at = moment(undisturbed_run, middle, "s0", "decode")  # so that the last one is idle
    run = TieredRun(tiered, asked, {middle: [(at, at + 50.0)]}).run(at + 0.049)
    assert run.workers[last].kv_accounting.cached_lens
    assert len(run.workers[last].reservations) == 1
    run.run(at + 0.0501)
    assert not run.workers[last].kv_accounting.cached_lens
    assert not len(run.workers[last].reservations)
    assert not run.pair_of(last).caches
    run.run()
    assert_all_answered(run)


def test_a_loss_is_reported_at_once_to_the_nodes_that_choose() -> None:
    tiered, asked = tiered_setup(tiers(1, 2, 2), devices=1), queries(1, 1, limit=24)
    undisturbed_run = TieredRun(tiered, asked).run()
    _, middle, last = nodes_of(undisturbed_run, "s0")
    at = moment(undisturbed_run, middle, "s0", "decode")
    run = TieredRun(tiered, asked, {middle: [(at, at + 50.0)]}).run(at + 0.06)
    (other,) = {"nx-0", "nx-1"} - {middle}
    told = [m for node, now, m in received(run, LoadReport) if node == other and m.node == last and now > at]
    assert told[0].queued_s == 0.0
    assert told[0].free_tokens == run.workers[last].kv_accounting.capacity_tokens


IN_PARTS: dict[str, dict[str, Any]] = {
    "sent": {"prefill": ChunkedPrefill(5, "first")},
    "run": {"scheduler": ContinuousBatch(64, 8)},
}


@pytest.mark.parametrize("override", IN_PARTS.values(), ids=IN_PARTS)
@pytest.mark.parametrize("name", ["hyperion", "sled"])
def test_a_prompt_in_parts_passes_a_node_that_stays_dead(name: str, override: dict[str, Any]) -> None:
    """All parts of the prompt pass it: once, the second part took the earlier path."""
    tiered, asked = tiered_setup(tiers(2, 2), name, devices=1, override=override), queries(1, 1, limit=24, prompt=16)
    undisturbed_run = TieredRun(tiered, asked).run()
    _, doomed = nodes_of(undisturbed_run, "s0")
    run = TieredRun(tiered, asked, {doomed: [(undisturbed_run.simulator.now / 2, 4000.0)]}).run(
        undisturbed_run.simulator.now + 20
    )
    assert_all_answered(run)
    assert len(received(run, CacheMiss)) <= 2


@pytest.mark.parametrize("limit", [1, 12])
@pytest.mark.parametrize("name", ["hyperion", "sled"])
def test_an_answer_lost_with_its_stream_is_requested_again(name: str, limit: int) -> None:
    """No node fails, and before its first answer the device does not know by way of whom that comes."""
    tiered, asked = tiered_setup(tiers(2, 2), name, devices=1), queries(1, 1, limit=limit)
    undisturbed_run = TieredRun(tiered, asked).run()
    _, last = nodes_of(undisturbed_run, "s0")
    begins_s, answers_s, _ = forwards(undisturbed_run, last, "s0")[0]
    ends = {last, "device-0"}
    run = TieredRun(tiered, asked)
    cut(run, ends, (begins_s + answers_s) / 2, answers_s + 0.5)
    run.run()
    assert_all_answered(run)
    assert_no_state_left(run)


@dataclass
class CutLink:
    """Loses the messages of a while."""

    link: LinkDirection
    down_s: float
    up_s: float

    def arrival_s(self, nbytes: float, now: float) -> float:
        return INF if self.down_s <= now < self.up_s else self.link.arrival_s(nbytes, now)


def cut(run: TieredRun, ends: set[str], down_s: float, up_s: float) -> None:
    """Messages between the two nodes in that time are lost, and both nodes are notified."""
    stage = run.simulator
    a, b = ends
    for here, there in ((a, b), (b, a)):
        stage.connect(here, there, CutLink(stage.links.find(here, there), down_s, up_s))
        stage.post(down_s, here, PeerLost(there))
        stage.post(up_s, here, PeerRestored(there))


@pytest.mark.parametrize("name", ["hyperion", "hat"])
def test_caches_of_a_lost_device_are_kept_for_its_lease_and_then_dropped(name: str) -> None:
    """Also if the path begins on the device. A device that is back may count attempts from 0."""
    topology = Topology(tiered_setup(tiers(1, 1), name, devices=1), LAYERS)
    worker, hop = topology.create_node("nano-0"), [hop.node for hop in topology.hops].index("nano")
    assert isinstance(worker, Worker)
    seq = SequenceSlice(
        "s", 0, 12, () if hop else tuple(range(12)), 0, "greedy", hidden_states=TensorRef("b", 100) if hop else None
    )
    asked = Request(7, seq, topology.hops, hop, ("device-0", "nano-0")[1 - hop :], "device-0")
    worker.handle(MessageReceived(asked), 0.0)
    worker.handle(TimerFired(worker.timer), 0.0)
    worker.handle(WorkFinished(worker.job, (SliceOutcome(None, TensorRef("c", 10)),)), 1.0)
    assert not any(isinstance(command, DropCache) for command in worker.handle(PeerLost("device-0"), 2.0))
    (timer,) = worker.session_registry.leases
    assert [
        command.session for command in worker.handle(TimerFired(timer), 40.0) if isinstance(command, DropCache)
    ] == ["s"]
    assert not worker.session_registry.newest_attempt
    assert not worker.session_registry.first_seen_s
    worker.handle(MessageReceived(replace(asked, attempt=0)), 50.0)
    assert worker.queue


# What is said when all is over.


def test_a_release_reaches_every_node_of_the_path_and_no_other() -> None:
    run = TieredRun(tiered_setup(tiers(2, 2, 2, 2), devices=1), queries(1, 1, limit=4)).run()
    assert [node for node, _, m in received(run, Release)] == [*nodes_of(run, "s0"), nodes_of(run, "s0")[0]]
    assert len(nodes_of(run, "s0")) == 4


def test_a_session_whose_path_was_lost_is_released_everywhere() -> None:
    tiered, asked = tiered_setup(tiers(2, 2), devices=1), queries(1, 1, limit=16)
    undisturbed_run = TieredRun(tiered, asked).run()
    at = moment(undisturbed_run, nodes_of(undisturbed_run, "s0")[1], "s0", "decode")
    run = TieredRun(tiered, asked, {nodes_of(undisturbed_run, "s0")[1]: [(at, at + 0.2)]}).run()
    assert {node for node, _, m in received(run, Release)} == {*run.workers}


def test_fresh_nodes_replay_the_log_of_tiers() -> None:
    tiered, asked = tiered_setup(tiers(2, 2, 2)), queries(4, every_s=0.05)
    run = TieredRun(tiered, asked).run()
    fresh = {name: run.topology.create_node(name) for name in (*run.topology.workers, *run.topology.devices)}
    assert all(tuple(fresh[node].handle(event, now)) == said for node, event, now, said in run.log.entries)


# Whatever fails, whenever.


@st.composite
def schedules(draw: st.DrawFn) -> list[tuple[float, float]]:
    """Disjoint outages in order, some shorter than the detection time, some longer than the reply timeout."""
    moments = draw(st.lists(st.one_of(st.floats(0.001, 4.0), st.floats(30.0, 60.0)), max_size=6))
    edges = sorted({round(each, 3) for each in moments})
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=False)]


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_random_failures_lose_no_request_and_leave_no_state(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(("hyperion", "hyperion", "sled", "hat")), "policy")
    bed = data.draw(st.sampled_from(((1, 1), (2, 2), (1, 2, 1), (2, 3, 2), (2, 2, 2, 2))), "nodes")
    override = {
        "dispatch": data.draw(
            st.sampled_from((HypSched(), EarliestFinish(), RandomDispatch(3), RoundRobin(), Affinity())), "dispatch"
        ),
        "scheduler": data.draw(
            st.sampled_from((Fifo(), UpwardRank(2), ContinuousBatch(), ContinuousBatch(4, 8))), "scheduler"
        ),
        "prefill": data.draw(
            st.sampled_from((WholePrefill(), ChunkedPrefill(5, "first"), ChunkedPrefill(5, "ahead"))), "prefill"
        ),
    }
    tiered = tiered_setup(tiers(*bed, detect_ms=data.draw(st.sampled_from((0.0, 50.0, 1000.0)), "detect")), name,
                override=override)  # fmt: skip
    down = {node: data.draw(schedules(), node) for node in FailingTopology(tiered, LAYERS).workers}
    asked = queries(5, every_s=data.draw(st.sampled_from((None, 0.01, 0.2)), "arrivals"), limit=10,
                    prompt=data.draw(st.sampled_from((12, 30)), "prompt"))  # fmt: skip
    timeout_s = data.draw(st.sampled_from((float("inf"), 3.0)), "timeout")
    run = TieredRun(tiered, asked, down, timeout_s=timeout_s).run()
    assert_all_answered(run)
    assert_no_state_left(run)
    for a, b in pairwise(now for _, _, now, _ in run.log.entries):
        assert a <= b
