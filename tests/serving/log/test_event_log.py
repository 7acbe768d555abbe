"""An event log holds what an observer saw, survives a crash, and is refused if malformed."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from serving.log.event_log import EventHandled, EventLog, MessageSent, NodeCreated, WorkDone, feed_observer
from serving.log.reader import read_entries, read_header
from serving.messages import (
    INF,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    GenerationRequest,
    Release,
    RequestArrived,
    StartWork,
    WorkFinished,
)
from tests.serving.log.recorded_runs import recorded, recorder, watched
from tests.support.policies import POLICIES
from tests.support.simulated_nodes import Log

WORK = DraftWork("s", 0, (1,), DraftStopRule(1))
DRAFTED = DraftOutcome((1,), {}, ((1,),), False, 1)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("file", ["events.jsonl", "events.jsonl.gz"])
def test_an_event_log_holds_what_a_recorder_saw(tmp_path: Path, name: str, file: str) -> None:
    live, told, log = recorder(), recorder(), Log()
    with EventLog(tmp_path / file, {"layers": 8}) as event_log:
        w = watched([event_log, live], name)
    feed_observer(read_entries(tmp_path / file), told)
    feed_observer(read_entries(tmp_path / file), log)
    assert told.records == live.records
    assert log.entries == w.log.entries


def test_the_same_run_writes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        recorded(tmp_path / name)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_nothing_large_is_written_twice(tmp_path: Path) -> None:
    recorded(tmp_path / "events.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert all("start" in line and "work" not in line for line in lines if "ran" in line)
    assert all("send" in line and "message" not in line for line in lines if "sent" in line)
    assert not [line for line in lines if line.get("event", {}).get("is") == "WorkFinished"]


def test_work_and_messages_without_a_command_are_written_in_full(tmp_path: Path) -> None:
    """A driver that makes its own objects, a message that arrives twice, an outcome that came over a wire."""
    path = tmp_path / "events.jsonl"
    with EventLog(path) as event_log:
        event_log.work_done("d", WORK, DRAFTED, 0.5, 1.0)
        event_log.message_sent("d", "c", Release("s"), 16, 1.0, INF)
        event_log.event_handled("d", WorkFinished(1, DRAFTED), 1.0, ())
    assert list(read_entries(path)) == [
        WorkDone("d", WORK, DRAFTED, 0.5, 1.0),
        MessageSent("d", "c", Release("s"), 16, 1.0, INF),
        NodeCreated("d", 1.0),
        EventHandled("d", 1.0, WorkFinished(1, DRAFTED), ()),
    ]


def test_an_outcome_of_other_work_is_written_in_full(tmp_path: Path) -> None:
    """A node that started again counts its jobs anew, and hears of its former life's."""
    path, other = tmp_path / "events.jsonl", DraftOutcome((2,), {}, ((2,),), False, 1)
    with EventLog(path) as event_log:
        event_log.event_handled("d", RequestArrived(GenerationRequest("s", (1,), 4)), 0.0, (StartWork(1, WORK),))
        event_log.work_done("d", WORK, DRAFTED, 0.5, 1.0)
        event_log.event_handled("d", WorkFinished(1, other), 1.0, ())
    assert list(read_entries(path))[-2:] == [
        WorkDone("d", WORK, DRAFTED, 0.5, 1.0),
        EventHandled("d", 1.0, WorkFinished(1, other), ()),
    ]


def test_a_node_is_created_by_the_driver_or_at_its_first_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as event_log:
        event_log.node_created("a", 0.0)
        event_log.event_handled("a", WorkFinished(1, ()), 1.0, ())
        event_log.event_handled("b", WorkFinished(1, ()), 2.0, ())
        event_log.node_created("a", 3.0)
    assert [e for e in read_entries(path) if isinstance(e, NodeCreated)] == [
        NodeCreated("a", 0.0),
        NodeCreated("b", 2.0),
        NodeCreated("a", 3.0),
    ]


def test_facts_may_be_added_later(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path, {"policy": "synera"}, offset_s=0.5) as event_log:
        event_log.add_facts(layers=8)
    assert (read_header(path).facts, read_header(path).offset_s) == ({"policy": "synera", "layers": 8}, 0.5)
    assert list(read_entries(path)) == []


@pytest.mark.parametrize("file", ["events.jsonl", "events.jsonl.gz"])
def test_a_truncated_log_is_readable(tmp_path: Path, file: str) -> None:
    _, whole = recorded(tmp_path / file)
    data = (tmp_path / file).read_bytes()
    for size in (len(data) // 3, len(data) // 2, len(data) - 3):
        (tmp_path / file).write_bytes(data[:size])
        found = list(read_entries(tmp_path / file))
        assert found == whole[: len(found)]
    assert len(found) > 0.9 * len(whole) - 256


def test_lines_are_flushed_during_the_run(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    event_log = EventLog(path, flush_every=4)
    event_log.node_created("a", 0.1)
    event_log.node_created("b", 0.2)
    assert list(read_entries(path)) == []
    event_log.node_created("c", 1.3)  # a second of the run's clock is over
    assert len(list(read_entries(path))) == 3
    for i in range(4):
        event_log.node_created(f"d{i}", 1.4)
    assert len(list(read_entries(path))) == 7
    event_log.close()
    event_log.close()


def test_the_start_of_a_session_is_flushed_at_once(tmp_path: Path) -> None:
    """Otherwise the logs of other processes would hold a session without a start."""
    event_log = EventLog(tmp_path / "events.jsonl.gz")
    event_log.event_handled("d", RequestArrived(GenerationRequest("s", (1,), 4)), 0.0, ())
    assert isinstance(list(read_entries(tmp_path / "events.jsonl.gz"))[-1], EventHandled)
    event_log.close()


GOOD = '{"event_log":5,"offset_s":0.0,"facts":{}}\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}\n", "is no event log"),
        ('{"event_log":7,"offset_s":0,"facts":{}}\n', "is version 7; this program reads event logs of version 5"),
        (GOOD + "what?\n", "line 2 is not JSON"),
        (GOOD + "3\n", "line 2: got 3, not an object"),
        (GOOD + '{"died":"a"}\n', "line 2: there is no 'created'"),
        (GOOD + '{"created":"a","at_s":"late"}\n', "line 2: got 'late', not a number"),
        (GOOD + '{"node":"a","at_s":1,"event":{"is":"TimerFired"},"commands":[]}\n',
         "line 2: TimerFired without timer"),
        (GOOD + '{"node":"a","at_s":1,"finished":3,"commands":[]}\n', "line 2: no work 3 ran before"),
        (GOOD + '{"ran":"a","start":3,"outcome":[],"begin_s":0,"end_s":1}\n', "line 2: no work 3 was started"),
        (GOOD + '{"sent":"a","send":3,"sent_s":0,"arrives_s":1}\n', "line 2: no message 3 was sent"),
    ],
)  # fmt: skip
def test_a_malformed_log_is_refused_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "events.jsonl").write_text(text)
    with pytest.raises(ValueError, match=why):
        list(read_entries(tmp_path / "events.jsonl"))


@pytest.mark.parametrize(
    ("text", "line"), [('{"event_log":5,"offset_s":0.0,"facts":3}\n', 1), (GOOD + '{"facts":3}\n', 2)]
)
def test_facts_that_are_no_object_are_refused_with_their_line(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "events.jsonl").write_text(text)
    with pytest.raises(ValueError, match=f"events.jsonl line {line}: facts are 3, not an object"):
        read_header(tmp_path / "events.jsonl")


@pytest.mark.parametrize("damage", ["not compressed", "checksum", "more behind it"])
def test_a_damaged_compressed_log_is_refused(tmp_path: Path, damage: str) -> None:
    whole = gzip.compress(50 * GOOD.encode())
    data = {"not compressed": GOOD.encode(), "checksum": whole[:-8] + bytes(8), "more behind it": whole + b"abc"}
    (tmp_path / "events.jsonl.gz").write_bytes(data[damage])
    with pytest.raises(ValueError, match=r"events\.jsonl\.gz is no whole gzip file"):
        read_header(tmp_path / "events.jsonl.gz")


def test_a_header_is_read_from_a_compressed_log(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "events.jsonl.gz", "wt") as file:
        file.write(GOOD)
    assert read_header(tmp_path / "events.jsonl.gz").facts == {}
    facts: dict[str, Any] = {"timeout_s": INF}
    with pytest.raises(ValueError, match="not JSON compliant"):
        EventLog(tmp_path / "bad.jsonl", facts)
