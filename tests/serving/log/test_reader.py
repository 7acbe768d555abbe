"""The merged logs of several processes equal the log of one driver."""

from pathlib import Path
from typing import Any

import pytest

from serving.log.event_log import EventHandled, EventLog, MessageSent, feed_observer
from serving.log.reader import merge_entries, merge_logs
from serving.messages import MessageReceived, Release, TimerFired
from tests.serving.log.recorded_runs import Later, Only, recorder, watched
from tests.support.policies import POLICIES
from tests.support.simulated_nodes import DelayedLink

DEVICES = {"device-0", "device-1", "device-2"}


def split(tmp_path: Path, name: str, ahead_s: float = 0.0, offset_s: float = 0.0, **how: Any) -> tuple[Any, list[Path]]:
    """A run's records, and its logs: the devices' and the cloud's, whose clock is ahead."""
    live, paths = recorder(), [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    with EventLog(paths[0]) as devices, EventLog(paths[1], offset_s=offset_s) as cloud:
        watched([live, Only(DEVICES, devices), Only({"cloud"}, Later(ahead_s, cloud))], name, **how)
    return live.records, paths


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("turned", [False, True])
def test_two_logs_merge_to_the_order_of_one_driver(tmp_path: Path, name: str, turned: bool) -> None:
    expected, paths = split(tmp_path, name)
    told = recorder()
    feed_observer(merge_logs(paths[::-1] if turned else paths), told)
    assert told.records == expected


@pytest.mark.parametrize("turned", [False, True])
def test_a_merge_orders_a_receipt_after_its_send_at_equal_times(
    tmp_path: Path, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DelayedLink, "arrival_s", lambda self, nbytes, now: now)
    expected, paths = split(tmp_path, "cloud_centric")
    told = recorder()
    feed_observer(merge_logs(paths[::-1] if turned else paths), told)
    assert {s: r.tokens for s, r in told.records.items()} == {s: r.tokens for s, r in expected.items()}
    assert {s: r.cloud_forward_tokens for s, r in told.records.items()} == {
        s: r.cloud_forward_tokens for s, r in expected.items()
    }


def test_an_offset_corrects_a_clock(tmp_path: Path) -> None:
    expected, paths = split(tmp_path, "sled", ahead_s=512.0, offset_s=-512.0)
    told = recorder()
    feed_observer(merge_logs(paths), told)
    for session, record in expected.items():
        assert told.records[session].token_times_s == record.token_times_s
        assert told.records[session].cloud_busy_s == pytest.approx(record.cloud_busy_s)


def test_a_small_clock_error_does_not_change_tokens(tmp_path: Path) -> None:
    expected, paths = split(tmp_path, "synera", ahead_s=-0.06)
    told = recorder()
    feed_observer(merge_logs(paths), told)
    assert {s: r.tokens for s, r in told.records.items()} == {s: r.tokens for s, r in expected.items()}


def test_a_merge_keeps_each_logs_order_and_does_not_wait_for_unknown_senders() -> None:
    stranger = EventHandled("a", 1.0, MessageReceived(Release("s")), ())
    first = [stranger, EventHandled("a", 1.0, TimerFired(1), ())]
    second = [
        EventHandled("b", 1.0, TimerFired(2), ()),
        EventHandled("b", 1.05, TimerFired(3), ()),
        EventHandled("b", 9.0, TimerFired(4), ()),
    ]
    found = list(merge_entries([iter(first), iter(second)], skew_s=0.1))
    assert found == [second[0], second[1], *first, second[2]]


def test_a_receiver_waits_for_its_sender() -> None:
    heard = EventHandled("a", 1.0, MessageReceived(Release("s")), ())
    sent = MessageSent("b", "a", Release("s"), 16, 1.01, 1.02)
    assert list(merge_entries([iter([heard]), iter([sent])])) == [sent, heard]
