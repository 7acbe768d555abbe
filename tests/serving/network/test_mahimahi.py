"""Mahimahi traces: computed by hand, recorded, and malformed."""

import re

import pytest

from serving.core.keyed_random import key
from serving.network.link import Link
from serving.network.mahimahi import MahimahiTrace


def rate(path, **options):
    return MahimahiTrace(path=path, start="begin", **options).rate("up", 0)


@pytest.mark.parametrize(
    ("nbytes", "start_ms", "sent_ms"),
    [
        (1500, 0, 5),
        (3000, 0, 10),
        (3001, 0, 14 + 1 / 1500),
        (4500, 0, 15),
        (1500, 4, 5),
        (1500, 5, 10),
        (1500, 20, 25),
        (750, 4, 4.5),
        (750, 4.5, 5),
        (751, 4.5, 9 + 1 / 1500),
        (150_000, 0, 500),
    ],
)
def test_a_packet_leaves_at_its_millisecond_and_the_file_begins_again(written, nbytes, start_ms, sent_ms):
    assert rate(written("5\n10\n")).departure_s(nbytes, start_ms / 1e3) == pytest.approx(sent_ms / 1e3)


def test_small_messages_share_an_opportunity_and_an_unused_one_is_lost(written):
    path = written("5\n10\n")
    channel = Link(uplink=MahimahiTrace(path=path, start="begin"), downlink_mbps=1).channel("up", 0)
    assert [channel.arrival_s(500, 0.0) for _ in range(4)] == pytest.approx(
        [4e-3 + 1e-3 / 3, 4e-3 + 2e-3 / 3, 5e-3, 9e-3 + 1e-3 / 3]
    )
    assert channel.arrival_s(1500, 0.011) == pytest.approx(0.015)


def test_several_opportunities_in_one_millisecond(written):
    assert rate(written("3\n3\n3\n6\n")).departure_s(4500, 0.0) == pytest.approx(0.003)
    assert rate(written("3\n3\n3\n6\n")).departure_s(6000, 0.0) == pytest.approx(0.006)


def test_a_time_of_0_is_the_end_of_the_lap_before(written):
    path = written("0\n0\n4\n\n")
    assert rate(path).departure_s(4500, 0.0) == pytest.approx(0.004)
    assert MahimahiTrace(path=path).mean_mbps == pytest.approx(3 * 1500 * 8 / 4e3)


def test_devices_start_at_different_points_and_both_directions_at_the_same(written):
    trace = MahimahiTrace(path=written("100\n1000\n"))
    offsets = {trace.rate("up", key(0, f"device-{i}")).offset_s for i in range(50)}
    assert len(offsets) == 50
    assert 0 <= min(offsets) < 0.2 < 0.8 < max(offsets) < 1
    assert trace.rate("up", 7) == trace.rate("down", 7)


def test_the_file_is_read_once_for_all_devices(written, monkeypatch):
    trace, text = MahimahiTrace(path=written("5\n10\n")), []
    monkeypatch.setattr(MahimahiTrace, "read", lambda *_: text.append("again"))
    assert trace.rate("up", 1).curve is trace.rate("down", 2).curve
    assert text == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the file is empty"),
        ("5\nten\n", "line 2: found 'ten', needed is one time in whole milliseconds, as 1500"),
        ("5\n7.5\n", "line 2: found '7.5'"),
        ("5 12\n", "line 1: found '5 12'"),
        ("-5\n", "line 1: found '-5'"),
        ("5\n\n9\n8\n", "line 4: 8 ms is before the 9 ms of the previous line; sort the file by time"),
        ("0\n0\n", "line 2: the last time, which is the period, is 0; 1 ms or more is needed"),
        ("\u0665\n", "line 1: found"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(written, text, message):
    path = written(text)
    with pytest.raises(ValueError, match=re.escape(f"{path} {message}")):
        MahimahiTrace(path=path)


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path):
    path = tmp_path / "binary"
    path.write_bytes(b"5\n\xff\n")
    with pytest.raises(ValueError, match=r"binary line 2: not UTF-8 \(byte 0xff\)"):
        MahimahiTrace(path=path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(ValueError, match="nowhere does not exist"):
        MahimahiTrace(path=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is a folder; a recording is one file"):
        MahimahiTrace(path=tmp_path)
    with pytest.raises(ValueError, match="start='middle' must be random or begin"):
        MahimahiTrace(path=tmp_path, start="middle")


def test_the_file_of_a_future_artifact_is_not_read():
    assert MahimahiTrace(path=object()).start == "random"


@pytest.mark.parametrize(
    ("name", "mbps"),
    [
        ("ATT-LTE-driving-2016.up", 1.91),
        ("ATT-LTE-driving-2016.down", 4.56),
        ("Verizon-LTE-short.up", 5.95),
        ("Verizon-LTE-short.down", 5.03),
    ],
)
def test_recorded_links_deliver_each_packet_at_its_line(data, name, mbps):
    """The means are those that conf/network/lte.yaml took from the same files."""
    path = data / "mahimahi" / name
    times = [int(line) for line in path.read_text().split()]
    assert MahimahiTrace(path=path).mean_mbps == pytest.approx(mbps, abs=0.005)
    link, later = rate(path), [time for time in times if time]  # zeros are the end of the lap before
    for count in (1, 10, 1000, len(later) - 1, len(later)):
        within = times[-1] if count == len(later) else later[count - 1]
        assert within - 1 <= link.departure_s(1500 * count, 0.0) * 1e3 <= within + 1e-3
    assert link.departure_s(1500 * len(times) * 3, 0.0) == pytest.approx(3 * times[-1] / 1e3)
