"""A run's records against the log of the same run."""

from typing import Any

import numpy as np
import pytest

from serving.messages import (
    DraftDecision,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    EmitTokens,
    ForwardWork,
    GenerationRequest,
    MessageReceived,
    Release,
    Request,
    RequestArrived,
    SendMessage,
    SequenceSlice,
    SessionCancelled,
    Span,
    StartWork,
    WorkFinished,
)
from serving.metrics.recorder import INTERVAL_FIELDS, LANES, Recorder, SessionRecord, Timeline
from serving.metrics.utilisation import stall_times
from serving.policy.slots.draft import InitialDraft, WindowDraft
from serving.policy.slots.lookahead import NoLookahead
from serving.policy.slots.placement import UShapedPlacement
from serving.policy.slots.uncertainty_offload import EdgeFMOffload, HybridOffload
from serving.policy.slots.verify import Replace
from tests.support.policies import POLICIES, THRESHOLDS, policy
from tests.support.simulated_nodes import Log, World, world


def recorded(name: str, **how: Any) -> tuple[World, dict[str, SessionRecord]]:
    """A run whose simulator tells a recorder beside the log."""
    w = world(policy(name), **how)
    recorder = Recorder([n for n in w.nodes if n != "cloud"])
    w.simulator.set_observers((w.log, recorder))
    w.run()
    return w, recorder.records


@pytest.mark.parametrize("name", POLICIES)
def test_tokens_times_and_endings_are_what_the_user_saw(name: str) -> None:
    w, records = recorded(name, devices=2, calls_each=2, limit=30)
    for call in w.calls:
        record = records[call.session]
        seen = [
            now
            for _, _, now, commands in w.log.entries
            for emit in commands
            if isinstance(emit, EmitTokens) and emit.session == call.session
            for _ in emit.tokens
        ]
        assert tuple(record.tokens) == w.text(call.session)
        assert record.token_times_s == seen == sorted(seen)
        assert len(record.origins) == len(record.tokens)
        assert record.ending == "complete"
        assert record.started_s is not None
        assert record.ended_s is not None
        assert record.arrived_s <= record.started_s <= seen[0] <= seen[-1] <= record.ended_s


def test_a_request_starts_after_the_previous_one_of_its_device() -> None:
    _, records = recorded("edge_centric", devices=1, calls_each=2)
    first, second = records["s0.0"], records["s0.1"]
    assert (second.arrived_s, second.started_s) == (0.0, first.ended_s)


@pytest.mark.parametrize("name", POLICIES)
def test_bytes_and_busy_seconds_add_up(name: str) -> None:
    w, records = recorded(name, devices=3, limit=30)
    ups = [
        (s.message, s.nbytes) for n, _, _, c in w.log.entries if n != "cloud" for s in c if isinstance(s, SendMessage)
    ]
    downs = [s.nbytes for n, _, _, c in w.log.entries if n == "cloud" for s in c if isinstance(s, SendMessage)]
    assert sum(r.uplink_nbytes for r in records.values()) == sum(n for _, n in ups)
    assert sum(r.downlink_nbytes for r in records.values()) == sum(downs)
    assert sum(r.uplink_messages for r in records.values()) == len(ups)
    works = [s.work for s in w.log.commands(StartWork)]
    rows = sum(rows.num_tokens for work in works if isinstance(work, ForwardWork) for rows in work.slices)
    assert sum(r.cloud_forward_tokens for r in records.values()) == rows == w.chips["cloud"].num_tokens_run
    batches = [work for work in works if isinstance(work, ForwardWork)]
    assert sum(r.cloud_busy_s for r in records.values()) == pytest.approx(0.015 * len(batches) + 2e-4 * rows)
    for record in records.values():
        drafting = [end - begin for lane, begin, end, _ in record.timeline if lane == "draft"]
        assert record.device_busy_s == pytest.approx(sum(drafting))


def test_drafted_tokens_are_those_of_the_drafter() -> None:
    _, records = recorded("sled", limit=30)
    for record in records.values():
        sent = sum(len(c.tokens) for c in record.draft_decisions)
        accepted = sum(c.accepted or 0 for c in record.draft_decisions)
        assert record.drafted == sent
        assert record.origins.count("accepted") == accepted


EVERY_VERIFY_CHOICE: dict[str, tuple[str, dict[str, Any]]] = {
    "all verified": ("sled", {}),
    "some verified": ("synera", {}),
    "trees verified": ("u_medusa", {"placement": UShapedPlacement(2)}),
    "one draft replaced": (
        "sled",
        {"draft": WindowDraft(1), "offload": HybridOffload(0.5, THRESHOLDS), "verify": Replace()},
    ),
    "a first chunk replaced": (
        "sled",
        {"draft": InitialDraft(4), "offload": EdgeFMOffload(0.5, THRESHOLDS), "verify": Replace()},
    ),
    "chunks replaced": ("synera", {"lookahead": NoLookahead(), "verify": Replace()}),
}


@pytest.mark.parametrize("choice", EVERY_VERIFY_CHOICE)
def test_only_drafts_that_the_cloud_computed_count_as_verified(choice: str) -> None:
    name, override = EVERY_VERIFY_CHOICE[choice]
    w = world(policy(name, **override), devices=4, limit=30)
    recorder = Recorder([n for n in w.nodes if n.startswith("device-")])
    w.simulator.set_observers((w.log, recorder))
    w.run()
    records = recorder.records.values()
    works = [start.work for start in w.log.commands(StartWork)]
    judged = sum(
        seq.num_drafts for work in works if isinstance(work, ForwardWork) and work.span.lm_head for seq in work.slices
    )
    asked = [one for one in w.chunks() if one.accepted is not None]
    assert sum(r.num_offloaded for r in records) == len(asked) > 0
    assert sum(r.drafts_verified for r in records) == judged
    replaced = sum(len(one.tokens) for one in asked) - judged
    assert sum(r.drafts_replaced for r in records) == replaced
    assert (judged == 0, replaced > 0) == (("replaced" in choice),) * 2
    assert sum(r.num_verified for r in records) == (0 if replaced else len(asked))


def test_the_time_of_a_batch_is_divided_by_tokens() -> None:
    recorder = Recorder(["d"])
    recorder.records = {name: SessionRecord(name, "d", 1, 0.0) for name in "ab"}
    seq = tuple(SequenceSlice(name, 0, n, (), rule="greedy") for name, n in (("a", 1), ("b", 3)))
    recorder.work_done("cloud", ForwardWork(Span(0, 8), seq, ("last",) * 2), (), 1.0, 2.0)
    assert [recorder.records[n].cloud_busy_s for n in "ab"] == [0.25, 0.75]
    assert [next(iter(recorder.records[n].timeline))[0] for n in "ab"] == ["decode", "prefill"]


def test_waiting_in_the_cloud_ends_when_the_batch_begins() -> None:
    w, records = recorded("sled", devices=3, limit=20)
    since: dict[str, float] = {}
    waited = dict.fromkeys(records, 0.0)
    for node, event, now, commands in w.log.entries:
        if node != "cloud":
            continue
        message = getattr(event, "message", None)
        if isinstance(message, Request):
            since[message.slice.session] = now
        for start in commands:
            if isinstance(start, StartWork) and isinstance(start.work, ForwardWork):
                for seq in start.work.slices:
                    waited[seq.session] += now - since[seq.session]
    assert {n: r.cloud_queue_s for n, r in records.items()} == pytest.approx(waited)
    assert all(r.cloud_queue_s > 0 for r in records.values())


def test_a_draft_that_ends_beside_a_batch_is_no_end_of_the_batch() -> None:
    """A draft model on chips of its own: b's draft ends after 3 s, a's batch after 10, and a drafts at once."""
    recorder, asked = Recorder(["d"]), MessageReceived(Release("other"))
    for session in "ab":
        recorder.event_handled("d", RequestArrived(GenerationRequest(session, (1, 2), 4)), 0.0, ())
    batch = ForwardWork(Span(0, 8), (SequenceSlice("a", 0, 1, (5,)),), ("last",))
    draft, drafted = DraftWork("b", 0, (1,), DraftStopRule(4)), DraftOutcome((7,), {}, ((7,),), False, 1)
    recorder.event_handled("cloud", asked, 0.0, (StartWork(1, batch),))
    recorder.event_handled("cloud", asked, 0.0, (StartWork(2, draft),))
    recorder.event_handled("cloud", WorkFinished(2, drafted), 3.0, ())
    following = StartWork(3, DraftWork("a", 0, (1,), DraftStopRule(4)))
    recorder.event_handled("cloud", WorkFinished(1, ()), 10.0, (following,))
    record = recorder.records["a"]
    assert (record.cloud_queue_s, [piece for piece in record.timeline if piece[0] == "queue"]) == (0.0, [])


def test_every_timeline_entry_has_a_lane_and_ordered_times() -> None:
    _, records = recorded("synera", limit=40)
    pieces = [piece for r in records.values() for piece in r.timeline]
    assert {lane for lane, *_ in pieces} == {"draft", "uplink", "downlink", "queue", "verify"}
    assert all(begin <= end for _, begin, end, _ in pieces)


@pytest.mark.parametrize("name", ["u_shape", "hat"])
def test_a_request_starts_with_the_devices_own_layers(name: str) -> None:
    """These layers are the device's in the time line, too: no stall, and no time in the cloud."""
    w, records = recorded(name, limit=12)
    first: dict[str, float] = {}
    for node, _, now, commands in w.log.entries:
        for command in commands:
            if node != "cloud" and isinstance(command, StartWork) and isinstance(command.work, ForwardWork):
                first.setdefault(command.work.slices[0].session, now)
    assert {session: record.started_s for session, record in records.items()} == first
    for record in records.values():
        layers = [piece for piece in record.timeline if piece[0] == "device_layers"]
        assert layers[0][1] == record.started_s
        assert sum(end - begin for _, begin, end, _ in layers) <= record.device_busy_s + 1e-9
        assert stall_times(Timeline(layers)) == (0, 0, 0)


def test_a_request_cancelled_in_the_queue_never_started() -> None:
    w = world(policy("edge_centric"), devices=1, calls_each=2)
    recorder = Recorder(["device-0"])
    w.simulator.set_observers((Log(), recorder))
    w.simulator.post(0.0, "device-0", SessionCancelled("s0.1"))
    w.run()
    record = recorder.records["s0.1"]
    assert (record.ending, record.started_s, record.tokens) == ("cancelled", None, [])


def test_a_timeline_says_its_intervals() -> None:
    intervals = [("draft", 0.5, 1.25, 4), ("uplink", 1.25, 2.0, 2**40)]
    assert list(Timeline(intervals)) == intervals
    assert (len(Timeline(intervals)), repr(Timeline(intervals))) == (2, f"Timeline({intervals})")
    assert Timeline(intervals) == Timeline(iter(intervals)) != Timeline(intervals[:1])


def test_a_timeline_tells_apart_its_lanes() -> None:
    line = Timeline([("draft", 0, 1, 4), ("uplink", 1, 2, 64), ("queue", 2, 2.5, 8), ("draft", 2, 3, 2)])
    assert line.spans("draft") == [(0, 1, 4), (2, 3, 2)]
    assert line.spans("queue", "uplink") == [(1, 2, 64), (2, 2.5, 8)]
    assert line.spans("decode") == line.spans() == []


def test_numpy_reads_a_packed_timeline() -> None:
    intervals = [("draft", 0.5, 1.25, 4), ("queue", 1.25, 2.0, 2**40)]
    read = np.frombuffer(Timeline(intervals).packed, np.dtype(INTERVAL_FIELDS))
    assert [(LANES[lane], *interval) for lane, *interval in read.tolist()] == intervals


def test_chunks_are_kept_in_order() -> None:
    w, records = recorded("synera", limit=40)
    for session, record in records.items():
        assert record.draft_decisions == [c for c in w.log.commands(DraftDecision) if c.session == session]
        assert [c.position for c in record.draft_decisions] == sorted(c.position for c in record.draft_decisions)
    assert not [s for s in w.log.commands(StartWork) if isinstance(s.work, DraftWork) and s.work.session not in records]


@pytest.mark.parametrize("name", POLICIES)
def test_without_detail_only_timeline_and_chunks_are_missing(name: str) -> None:
    w = world(policy(name), limit=30)
    names = [n for n in w.nodes if n != "cloud"]
    whole, brief = Recorder(names), Recorder(names, detail=False)
    w.simulator.set_observers((whole, brief))
    w.run()
    assert any(r.timeline for r in whole.records.values())
    for record in whole.records.values():
        record.timeline = Timeline()
        record.draft_decisions.clear()
    assert brief.records == whole.records


def test_a_forgotten_session_is_not_recorded_again_by_late_requests() -> None:
    recorder = Recorder(["d"])
    asks = MessageReceived(Request(0, SequenceSlice("a", 0, 1, (5,), rule="greedy"), (), 0, ("cloud",), "d"))
    recorder.event_handled("d", RequestArrived(GenerationRequest("a", (5,), 8)), 0.0, ())
    recorder.event_handled("cloud", asks, 1.0, ())
    queue = recorder._workers["cloud"]
    assert (queue.waiting_since_s, queue.arrived) == ({"a": 1.0}, {"a"})
    recorder.forget("a")
    recorder.event_handled("cloud", asks, 2.0, ())
    assert (queue.waiting_since_s, queue.arrived, recorder.records) == ({}, set(), {})


def test_a_lost_message_counts_bytes_and_has_no_timeline_entry() -> None:
    recorder = Recorder(["d"])
    recorder.records = {"a": SessionRecord("a", "d", 1, 0.0)}
    recorder.message_sent("d", "cloud", Release("a"), 16, 1.0, float("inf"))
    record = recorder.records["a"]
    assert (record.uplink_nbytes, record.uplink_messages, len(record.timeline)) == (16, 1, 0)
