"""The time lines of requests that are read from a log are those of the run."""

from pathlib import Path

import pytest

from serving.log.event_log import EventHandled, MessageSent, NodeCreated, WorkDone
from serving.log.request_lanes import read_lanes, request_lanes
from serving.messages import (
    EmitTokens,
    ForwardWork,
    GenerationRequest,
    MessageReceived,
    Request,
    RequestArrived,
    SequenceSlice,
    Span,
    StartWork,
    TimerFired,
)
from tests.serving.log.recorded_runs import recorded


@pytest.mark.parametrize("name", ["synera", "cloud_centric", "hat"])
def test_a_requests_work_and_messages_are_all_there(tmp_path: Path, name: str) -> None:
    path = tmp_path / "events.jsonl"
    _, entries = recorded(path, name)
    arrived = [one for one in entries if isinstance(getattr(one, "event", None), RequestArrived)]
    session = arrived[1].event.request.session
    found = read_lanes(path, [session, "no such session"])
    assert list(found) == [session]
    line = found[session]
    assert line["arrived_s"] == arrived[1].at_s
    passes = [
        (one.node.removesuffix(".chip"), one.begin_s, one.end_s) for one in entries
        if isinstance(one, WorkDone) and isinstance(one.work, ForwardWork)
        and session in [seq.session for seq in one.work.slices]
    ]  # fmt: skip
    shown = [one for one in line["spans"] if one["kind"] in ("prefill", "verify", "decode") and "token" in one["text"]
             and "read" not in one["text"]]  # fmt: skip
    assert [(one["node"], one["begin_s"], one["end_s"]) for one in shown] == passes
    assert passes
    sent = [one for one in entries if isinstance(one, MessageSent) and session in repr(one.message)]
    links = [one for one in line["spans"] if one["lane"].startswith("to ")]
    assert len(links) == len(sent)
    tokens = sum(
        len(command.tokens) for one in entries for command in getattr(one, "commands", ())
        if isinstance(command, EmitTokens) and command.session == session
    )  # fmt: skip
    assert sum(len(one["origins"]) for one in line["tokens"]) == tokens > 0


def test_waits_end_when_the_work_begins(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    _, entries = recorded(path, "cloud_centric", devices=4)
    sessions = [one.event.request.session for one in entries if isinstance(getattr(one, "event", None), RequestArrived)]
    waits = 0
    for line in read_lanes(path, sessions).values():
        begins = {one["begin_s"] for one in line["spans"] if one["lane"] == "chip"}
        own = [one for one in line["spans"] if one["kind"] == "queue"]
        waits += len(own)
        assert all(one["end_s"] > one["begin_s"] for one in own)
        assert all(any(abs(one["end_s"] - begin_s) < 1e-9 for begin_s in begins) for one in own)
    assert waits > 0


def test_a_wait_ends_when_its_worker_restarts() -> None:
    """The request that comes again behind the restart waits anew, until its batch."""
    seq = SequenceSlice("s", 0, 1, (1,), 0, "greedy")
    asked = MessageReceived(Request(0, seq, (), 0, (), "d"))
    batch = StartWork(1, ForwardWork(Span(0, 8, True, True), (seq,), ("last",)))
    entries = [
        EventHandled("d", 0.0, RequestArrived(GenerationRequest("s", (1,), 4)), ()),
        EventHandled("cloud", 1.0, asked, ()),
        NodeCreated("cloud", 2.0),
        EventHandled("cloud", 5.0, asked, ()),
        EventHandled("cloud", 6.0, TimerFired(1), (batch,)),
    ]
    waits = [(one["begin_s"], one["end_s"], one["text"]) for one in request_lanes(entries, ["s"])["s"]["spans"]]
    assert waits == [(1.0, 2.0, "unserved"), (5.0, 6.0, "")]
