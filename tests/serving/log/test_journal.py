"""A journal holds what an observer saw, survives a crash, and is refused when it is something else."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from fake_world import ROWS, Log
from log.recorded import recorded, recorder, watched

from serving.log.entries import Born, Handled, Ran, Sent, feed
from serving.log.event_log import Journal
from serving.log.reader import header, read
from serving.messages import INF, Begin, Call, Drafted, Finished, Generate, Release, Start, Stop

WORK = Generate("s", 0, (1,), Stop(1))
DRAFTED = Drafted((1,), {}, ((1,),), False, 1)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("file", ["events.jsonl", "events.jsonl.gz"])
def test_it_holds_what_a_recorder_saw(tmp_path: Path, name: str, file: str) -> None:
    live, told, log = recorder(), recorder(), Log()
    with Journal(tmp_path / file, {"layers": 8}) as journal:
        w = watched([journal, live], name)
    feed(read(tmp_path / file), told)
    feed(read(tmp_path / file), log)
    assert told.records == live.records
    assert log.entries == w.log.entries


def test_the_same_run_is_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        recorded(tmp_path / name)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_nothing_large_is_written_twice(tmp_path: Path) -> None:
    recorded(tmp_path / "events.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert all("start" in line and "work" not in line for line in lines if "ran" in line)
    assert all("send" in line and "message" not in line for line in lines if "sent" in line)
    assert not [line for line in lines if line.get("event", {}).get("is") == "Finished"]


def test_what_cannot_be_referred_to_is_written_out(tmp_path: Path) -> None:
    """A driver that makes its own objects, a message that arrives twice, an outcome that came over a wire."""
    path = tmp_path / "events.jsonl"
    with Journal(path) as journal:
        journal.ran("d", WORK, DRAFTED, 0.5, 1.0)
        journal.sent("d", "c", Release("s"), 16, 1.0, INF)
        journal.handled("d", Finished(1, DRAFTED), 1.0, ())
    assert list(read(path)) == [
        Ran("d", WORK, DRAFTED, 0.5, 1.0),
        Sent("d", "c", Release("s"), 16, 1.0, INF),
        Born("d", 1.0),
        Handled("d", 1.0, Finished(1, DRAFTED), ()),
    ]


def test_an_outcome_that_is_not_the_one_that_ran_is_written_out(tmp_path: Path) -> None:
    """A node that started again counts its jobs anew, and hears of its former life's."""
    path, other = tmp_path / "events.jsonl", Drafted((2,), {}, ((2,),), False, 1)
    with Journal(path) as journal:
        journal.handled("d", Begin(Call("s", (1,), 4)), 0.0, (Start(1, WORK),))
        journal.ran("d", WORK, DRAFTED, 0.5, 1.0)
        journal.handled("d", Finished(1, other), 1.0, ())
    assert list(read(path))[-2:] == [Ran("d", WORK, DRAFTED, 0.5, 1.0), Handled("d", 1.0, Finished(1, other), ())]


def test_a_node_is_born_when_a_driver_says_so_or_at_its_first_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Journal(path) as journal:
        journal.born("a", 0.0)
        journal.handled("a", Finished(1, ()), 1.0, ())
        journal.handled("b", Finished(1, ()), 2.0, ())
        journal.born("a", 3.0)
    assert [e for e in read(path) if isinstance(e, Born)] == [Born("a", 0.0), Born("b", 2.0), Born("a", 3.0)]


def test_facts_may_come_late(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Journal(path, {"policy": "synera"}, offset_s=0.5) as journal:
        journal.note(layers=8)
    assert (header(path).facts, header(path).offset_s) == ({"policy": "synera", "layers": 8}, 0.5)
    assert list(read(path)) == []


@pytest.mark.parametrize("file", ["events.jsonl", "events.jsonl.gz"])
def test_a_crash_leaves_a_readable_beginning(tmp_path: Path, file: str) -> None:
    _, whole = recorded(tmp_path / file)
    data = (tmp_path / file).read_bytes()
    for size in (len(data) // 3, len(data) // 2, len(data) - 3):
        (tmp_path / file).write_bytes(data[:size])
        found = list(read(tmp_path / file))
        assert found == whole[: len(found)]
    assert len(found) > 0.9 * len(whole) - 256


def test_lines_reach_the_file_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    journal = Journal(path, flush_every=4)
    journal.born("a", 0.1)
    journal.born("b", 0.2)
    assert list(read(path)) == []
    journal.born("c", 1.3)  # a second of the run's clock is over
    assert len(list(read(path))) == 3
    for i in range(4):
        journal.born(f"d{i}", 1.4)
    assert len(list(read(path))) == 7
    journal.close()
    journal.close()


def test_a_session_is_never_lost_with_the_buffer(tmp_path: Path) -> None:
    """Readers of other processes' journals would meet a session that nobody began."""
    journal = Journal(tmp_path / "events.jsonl.gz")
    journal.handled("d", Begin(Call("s", (1,), 4)), 0.0, ())
    assert isinstance(list(read(tmp_path / "events.jsonl.gz"))[-1], Handled)
    journal.close()


GOOD = '{"journal":1,"offset_s":0.0,"facts":{}}\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}\n", "is no journal"),
        ('{"journal":7,"offset_s":0,"facts":{}}\n', "is version 7; this program reads journals of version 1"),
        (GOOD + "what?\n", "line 2 is not JSON"),
        (GOOD + "3\n", "line 2: got 3, not an object"),
        (GOOD + '{"died":"a"}\n', "line 2: there is no 'born'"),
        (GOOD + '{"born":"a","at":"late"}\n', "line 2: got 'late', not a number"),
        (GOOD + '{"node":"a","at":1,"event":{"is":"Woke"},"commands":[]}\n', "line 2: Woke without timer"),
        (GOOD + '{"node":"a","at":1,"finished":3,"commands":[]}\n', "line 2: no work 3 ran before"),
        (GOOD + '{"ran":"a","start":3,"outcome":[],"begin":0,"end":1}\n', "line 2: no work 3 was started"),
        (GOOD + '{"sent":"a","send":3,"now":0,"arrives":1}\n', "line 2: no message 3 was said"),
    ],
)  # fmt: skip
def test_what_is_no_journal_is_refused_by_line(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "events.jsonl").write_text(text)
    with pytest.raises(ValueError, match=why):
        list(read(tmp_path / "events.jsonl"))


def test_a_header_is_read_from_a_compressed_journal_too(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "events.jsonl.gz", "wt") as file:
        file.write(GOOD)
    assert header(tmp_path / "events.jsonl.gz").facts == {}
    facts: dict[str, Any] = {"timeout_s": INF}
    with pytest.raises(ValueError, match="not JSON compliant"):
        Journal(tmp_path / "bad.jsonl", facts)
