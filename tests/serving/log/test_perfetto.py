"""The time line is well-formed: named tracks, no overlapping slices, complete spans and arrows."""

import gzip
import importlib.util
import json
import shutil
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from serving.log.event_log import EventHandled, MessageSent, NodeCreated
from serving.log.perfetto import write_trace
from serving.messages import (
    INF,
    EmitTokens,
    ForwardWork,
    GenerationRequest,
    MessageReceived,
    Release,
    Reply,
    Request,
    RequestArrived,
    SendMessage,
    SequenceSlice,
    SessionCancelled,
    Span,
    StartWork,
    TimerFired,
    Verdict,
)
from tests.serving.log.recorded_runs import recorded
from tests.support.policies import POLICIES

Event = dict[str, Any]


def drawn(tmp_path: Path, name: str = "synera", sessions: int = 200, **how: Any) -> list[Event]:
    _, entries = recorded(tmp_path / "events.jsonl", name, **how)
    return trace(tmp_path, entries, sessions)


def trace(tmp_path: Path, entries: list[Any], sessions: int = 200) -> list[Event]:
    write_trace(entries, tmp_path / "trace.json.gz", sessions)
    document = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    assert set(document) == {"displayTimeUnit", "traceEvents"}
    events: list[Event] = document["traceEvents"]
    return events


def of(events: list[Event], phase: str, **what: Any) -> list[Event]:
    return [e for e in events if e["ph"] == phase and all(e.get(k) == v for k, v in what.items())]


def nodes(events: list[Event]) -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in of(events, "M", name="process_name")}


def tracks(events: list[Event]) -> dict[int, str]:
    names = nodes(events)
    return {e["tid"]: f"{names[e['pid']]}/{e['args']['name']}" for e in of(events, "M", name="thread_name")}


@pytest.mark.parametrize("name", POLICIES)
def test_every_trace_event_is_complete_and_on_a_named_track(tmp_path: Path, name: str) -> None:
    events = drawn(tmp_path, name)
    known, threads = nodes(events), tracks(events)
    assert set(known.values()) == {"device-0", "device-1", "device-2"} | (
        set() if name == "edge_centric" else {"cloud"}
    )
    for event in events:
        assert event["ph"] in "MXbeistfC"
        assert event["name"]
        assert type(event["ts"]) is int
        assert event["pid"] in known
        assert event.get("tid", next(iter(threads))) in threads
        assert event.get("dur", 0) >= 0
    assert len(threads) == len(set(threads.values()))
    assert not set(threads) & set(known)


@pytest.mark.parametrize("name", POLICIES)
def test_slices_of_a_track_do_not_overlap(tmp_path: Path, name: str) -> None:
    by_track = defaultdict(list)
    for event in of(events := drawn(tmp_path, name), "X"):
        by_track[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert by_track
    for spans in by_track.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert any(track.endswith("/chip") and tid in by_track for tid, track in tracks(events).items())


@pytest.mark.parametrize("name", POLICIES)
def test_every_span_has_its_end(tmp_path: Path, name: str) -> None:
    events = drawn(tmp_path, name)
    begun, ended = of(events, "b"), {e["id"]: e for e in of(events, "e")}
    assert len({e["id"] for e in begun}) == len(begun) == len(ended)
    assert bool(begun) == (name != "edge_centric")
    for event in begun:
        end = ended[event["id"]]
        assert (end["pid"], end["cat"], end["name"]) == (event["pid"], event["cat"], event["name"])
        assert end["ts"] >= event["ts"]


@pytest.mark.parametrize("name", ["sled", "synera", "cloud_centric"])
def test_arrows_lead_from_a_request_through_its_batch_to_its_reply(tmp_path: Path, name: str) -> None:
    events = drawn(tmp_path, name)
    slices = defaultdict(list)
    for event in of(events, "X"):
        slices[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            assert any(begin <= event["ts"] < max(end, begin + 1) for begin, end in slices[event["tid"]])
            flows[event["id"]].append(event)
    assert len(flows) > 10
    threads = tracks(events)
    for points in flows.values():
        assert [p["ph"] for p in points] == ["s", *["t"] * (len(points) - 2), "f"]
        assert len(points) > 2
        assert [p["ts"] for p in points] == sorted(p["ts"] for p in points)
        ends, middle = (points[0], points[-1]), points[1:-1]
        assert {threads[p["tid"]].split("/")[1] for p in ends} == {"verdicts"}
        assert {threads[p["tid"]] for p in middle} == {"cloud/chip"}


def test_a_trace_shows_sessions_tokens_messages_and_queues(tmp_path: Path) -> None:
    w, entries = recorded(tmp_path / "events.jsonl", "synera")
    events = trace(tmp_path, entries)
    sessions = {c.session for c in w.calls}
    drawn_sessions = of(events, "X", cat="session")
    assert {e["name"] for e in drawn_sessions} == sessions
    assert {e["args"]["ending"] for e in drawn_sessions} == {"complete"}
    assert len(of(events, "i", name="first token")) == len(sessions)
    marks = of(events, "i", cat="tokens")
    for session in sessions:
        shown = [t for e in marks if e["args"]["session"] == session for t in e["args"]["tokens"]]
        assert tuple(shown) == w.text(session)
    messages = sum(isinstance(e, MessageSent) for e in entries)
    assert len(of(events, "b", cat="uplink")) + len(of(events, "b", cat="downlink")) == messages
    waiting = [e["args"]["waiting"] for e in of(events, "C")]
    assert waiting[-1] == 0
    assert max(waiting) > 1
    assert {e["args"]["until"] for e in of(events, "b", name="queue")} == {"batch"}
    assert any("accepted" in line for e in of(events, "X", cat="chip") for line in e["args"].get("sessions", ()))


def test_a_trace_shows_at_most_the_given_sessions(tmp_path: Path) -> None:
    events = drawn(tmp_path, "synera", sessions=2)
    assert len({e["name"] for e in of(events, "X", cat="session")}) == 2
    shown = {e["args"]["session"] for e in events if "session" in e.get("args", {})}
    assert shown == {e["name"] for e in of(events, "X", cat="session")}
    assert len(events) < 0.6 * len(drawn(tmp_path, "synera"))


def test_unfinished_sessions_are_drawn_to_the_end(tmp_path: Path) -> None:
    _, entries = recorded(tmp_path / "events.jsonl", "synera")
    events = trace(tmp_path, entries[: len(entries) // 3])
    assert "unfinished" in {e["args"]["ending"] for e in of(events, "X", cat="session")}
    assert len(of(events, "b")) == len(of(events, "e"))


def test_a_restarted_device_ends_its_sessions_and_a_waiting_session_is_not_drawn(tmp_path: Path) -> None:
    calls = [EventHandled("d", 0.0, RequestArrived(GenerationRequest(s, (1,), 4)), ()) for s in ("p", "q")]
    left = EventHandled("d", 1.0, SessionCancelled("q"), (EmitTokens("q", (), (), "cancelled"),))
    events = trace(tmp_path, [NodeCreated("d", 0.0), *calls, left, NodeCreated("d", 2.0)])
    assert [(e["name"], e["dur"], e["args"]["ending"]) for e in of(events, "X")] == [("p", 2_000_000, "unfinished")]
    assert of(events, "i", name="q cancelled while it waited")


def test_sessions_that_a_device_serves_side_by_side_are_spans(tmp_path: Path) -> None:
    """r1 ends within r0; r2, which waited for r1, ends behind r0."""
    calls = [EventHandled("d", 0.0, RequestArrived(GenerationRequest(s, (1,), 4)), ()) for s in ("r0", "r1", "r2")]
    times = [(0.5, "r0", ""), (1.0, "r1", ""), (2.0, "r1", "complete"), (2.5, "r2", ""), (3.0, "r0", "complete")]
    ends = [
        EventHandled("d", at_s, TimerFired(1), (EmitTokens(s, (5,), ("device",), ending),))
        for at_s, s, ending in (*times, (4.0, "r2", "complete"))
    ]
    events = trace(tmp_path, [*calls, *ends])
    assert [(e["name"], e["ts"], e["dur"]) for e in of(events, "X", cat="session")] == [("r0", 0, 3_000_000)]
    begun = {e["name"]: (e["ts"], e["args"]["waited_ms"]) for e in of(events, "b", cat="session")}
    assert begun == {"session r1": (1_000_000, 1000), "session r2": (2_500_000, 2500)}
    assert [e["ts"] for e in of(events, "e", cat="session")] == [2_000_000, 4_000_000]
    assert not [e for e in events if "while it waited" in e["name"]]


def test_verdicts_of_several_sessions_of_a_device_abandon_none(tmp_path: Path) -> None:
    def asked(session: str, at_s: float) -> EventHandled:
        request = Request(0, SequenceSlice(session, 0, 1, (1,), 1, "greedy"), (), 0, ("cloud",), "d")
        return EventHandled("d", at_s, TimerFired(1), (SendMessage("cloud", request, 16),))

    def answered(session: str, at_s: float) -> EventHandled:
        return EventHandled("d", at_s, MessageReceived(Reply(session, 0, 1, Verdict(1, 5), (), 0)), ())

    calls = [EventHandled("d", 0.0, RequestArrived(GenerationRequest(s, (1,), 4)), ()) for s in ("r0", "r1")]
    events = trace(tmp_path, [*calls, asked("r0", 1.0), asked("r1", 2.0), answered("r1", 3.0), answered("r0", 4.0)])
    assert [(e["ts"], e["dur"], e["args"]["session"]) for e in of(events, "X", cat="verdicts")] == [
        (2_000_000, 1_000_000, "r1")
    ]
    assert [(e["name"], e["ts"], e["args"]["session"]) for e in of(events, "b", cat="verdict")] == [
        ("verdict 1 of 1 accepted", 1_000_000, "r0")
    ]


def test_a_queue_wait_starts_with_a_requests_first_part_and_not_after_its_session(tmp_path: Path) -> None:
    seq = SequenceSlice("s", 0, 1, (1,), 0, "greedy")
    part = MessageReceived(Request(0, seq, (), 0, (), "d"))
    start = StartWork(1, ForwardWork(Span(0, 8, True, True), (seq,), ("last",)))
    entries = [
        EventHandled("d", 0.0, RequestArrived(GenerationRequest("s", (1,), 4)), ()),
        *(EventHandled("cloud", at_s, part, ()) for at_s in (1.0, 2.0)),
        EventHandled("cloud", 3.0, TimerFired(1), (start,)),
        EventHandled("d", 4.0, TimerFired(1), (EmitTokens("s", (2,), ("cloud",), "complete"),)),
        EventHandled("cloud", 5.0, part, ()),
    ]
    events = trace(tmp_path, entries)
    assert [e["ts"] for e in events if e["name"] == "queue"] == [1_000_000, 3_000_000]
    assert [(e["ts"], e["args"]["waiting"]) for e in of(events, "C")] == [(1_000_000, 1), (3_000_000, 0)]


def test_a_lost_message_is_marked_as_lost(tmp_path: Path) -> None:
    begin = EventHandled("d", 0.0, RequestArrived(GenerationRequest("s", (1,), 4)), ())
    events = trace(tmp_path, [begin, MessageSent("d", "cloud", Release("s"), 16, 1.0, INF)])
    (span,) = of(events, "b")
    assert (span["name"], span["args"]["nbytes"]) == ("uplink, lost", 16)


def test_plain_and_compressed_traces_are_equal(tmp_path: Path) -> None:
    _, entries = recorded(tmp_path / "events.jsonl", "sled")
    for name in ("a.json", "a.json.gz", "b.json.gz"):
        write_trace(entries, tmp_path / name)
    packed = (tmp_path / "a.json.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "a.json").read_bytes()
    assert packed == (tmp_path / "b.json.gz").read_bytes()


def test_perfetto_reads_the_trace(tmp_path: Path) -> None:
    binary = shutil.which("trace_processor_shell")  # the package would download it
    if importlib.util.find_spec("perfetto") is None or binary is None:
        pytest.skip("the package perfetto, or trace_processor_shell on PATH, is not there")
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    drawn(tmp_path)
    config = TraceProcessorConfig(bin_path=binary)
    with TraceProcessor(trace=str(tmp_path / "trace.json.gz"), config=config) as processor:
        assert next(iter(processor.query("select count(*) as n from flow"))).n > 10
