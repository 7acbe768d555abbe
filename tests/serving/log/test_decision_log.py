"""The decision log ignores times and nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.log.event_log import LogEntry, shift_time
from serving.log.replay import decision_log, first_difference
from serving.messages import EmitTokens
from tests.serving.log.recorded_runs import recorded
from tests.support.policies import POLICIES


@pytest.mark.parametrize("name", POLICIES)
def test_the_decision_log_ignores_times(tmp_path: Path, name: str) -> None:
    w, entries = recorded(tmp_path / "events.jsonl", name)
    found = decision_log(entries)
    assert first_difference(found, decision_log(shift_time(entry, 100.0) for entry in entries)) is None
    assert {c.session for c in w.calls} <= set(found)
    shown = [line for c in w.calls for line in found[c.session] if line.startswith("emitted")]
    assert sum(line.count(":") for line in shown) == sum(len(d.tokens) for d in w.log.commands(EmitTokens))
    assert all(found[c.session][-1] == "ended complete" for c in w.calls)
    assert ("cloud" in found) == (name != "edge_centric")


def test_the_decision_log_lists_decisions_in_order(tmp_path: Path) -> None:
    _, entries = recorded(tmp_path / "events.jsonl", "sled", devices=1, calls_each=1, limit=5)
    found = decision_log(entries)
    assert found["cloud"] == [line for line in found["cloud"] if line.startswith("batch of layers 0-8: s0.0[0:")]
    heads = [line.split(" ")[0] for line in found["s0.0"]]
    assert heads[:5] == ["drafted", "sent", "accepted", "emitted", "drafted"]


def test_sessions_of_equal_times_may_come_in_any_order(tmp_path: Path) -> None:
    _, entries = recorded(tmp_path / "events.jsonl", "edge_centric", devices=2)
    by_node = [e for e in entries if e.node == "device-1"] + [e for e in entries if e.node == "device-0"]
    assert first_difference(decision_log(entries), decision_log(by_node)) is None


def test_the_first_difference_is_described(tmp_path: Path) -> None:
    _, entries = recorded(tmp_path / "events.jsonl", "sled", devices=1, calls_each=1, limit=5)
    a = decision_log(entries)
    b = {name: list(lines) for name, lines in a.items()}
    b["s0.0"][2] = "accepted 0 of 4 at 12"
    assert first_difference(a, b) == f"s0.0, decision 3: {a['s0.0'][2]} <> accepted 0 of 4 at 12"
    assert first_difference({"x": ["drafted 1"]}, {}) == "x, decision 1: drafted 1 <> nothing"


def test_another_outcome_gives_another_decision_log(tmp_path: Path) -> None:
    _, a = recorded(tmp_path / "a.jsonl", "synera")
    _, b = recorded(tmp_path / "b.jsonl", "synera", alpha=0.6)
    assert first_difference(decision_log(a), decision_log(b)) is not None


def test_shifting_times_keeps_all_else(tmp_path: Path) -> None:
    _, entries = recorded(tmp_path / "a.jsonl", "sled")
    back: list[LogEntry] = [shift_time(shift_time(e, 4.0), -4.0) for e in entries]
    timeless = {"at_s": 0.0}, {"begin_s": 0.0, "end_s": 0.0}, {"sent_s": 0.0, "arrives_s": 0.0}

    def strip(entry: LogEntry) -> LogEntry:
        return next(replace(entry, **t) for t in timeless if hasattr(entry, next(iter(t))))

    assert [strip(e) for e in back] == [strip(e) for e in entries]
