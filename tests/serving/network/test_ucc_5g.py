"""UCC 5G logs: computed by hand, recorded, and malformed."""

import re

import pytest

from serving.network.link import Link
from serving.network.ucc_5g import UCC5GTrace

HEADER = "Timestamp,NetworkMode,DL_bitrate,UL_bitrate,State,PINGAVG\n"


def at(second, kbps, state="D"):
    return f"2019.12.16_11.49.{second:02d},5G,{kbps},36,{state},-\n"


def test_readings_of_a_second_are_averaged_hold_until_the_next_and_the_last_for_a_second(written):
    log = HEADER + at(10, 6000) + at(10, 10_000) + at(12, 0) + at(13, 16_000)
    trace = UCC5GTrace(path=written(log), start="begin")
    rate = trace.rate("down", 0)
    assert trace.data.period_s == pytest.approx(4)
    assert [rate.departure_s(nbytes, 0.0) for nbytes in (1e6, 2e6, 3e6, 4e6, 5e6)] == pytest.approx([1, 2, 3.5, 4, 5])


def test_idle_readings_are_skipped(written):
    busy = HEADER + at(10, 8000) + at(12, 16_000)
    idle = HEADER + at(9, 0, "I") + at(10, 8000) + at(11, 0, "I") + at(12, 16_000) + at(13, 0, "I")
    assert UCC5GTrace(path=written(busy)).data == UCC5GTrace(path=written(idle)).data


def test_a_ucc_5g_uplink_is_refused(written):
    path = written(HEADER + at(10, 8000))
    assert Link(uplink_mbps=20, downlink=UCC5GTrace(path=path)).mean_mbps("down") == pytest.approx(8)
    with pytest.raises(ValueError, match=r"network.uplink: UCC5GTrace has no rate of an uplink"):
        Link(uplink=UCC5GTrace(path=path), downlink_mbps=8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", " line 1: the file is empty"),
        ("Timestamp,State\n", ' line 1: the header has no column "DL_bitrate"; has: Timestamp, State'),
        (HEADER + at(10, 1) + "2019.12.16_11.49.11,5G\n", " line 3: 2 columns, the header has 6"),
        (HEADER + at(10, "-"), ' line 2: field "DL_bitrate" is a text, needed is a whole number'),
        (HEADER + at(10, -4), " line 2: DL_bitrate is -4, needed are kbit/s, 0 or more"),
        (HEADER + "16/12/2019,5G,1,1,D,-\n", " line 2: Timestamp is '16/12/2019', needed is a time like 2019.12.16_11"),
        (HEADER + at(10, 1) + at(9, 1), " line 3: Timestamp is earlier than the previous line; sort the log by time"),
        (HEADER + at(10, 1, "I"), ": no reading in state D (downloading)"),
        (HEADER, ": no reading in state D (downloading)"),
        (HEADER + at(10, 0), ": every rate is 0, so no message would ever leave"),
    ],
)
def test_a_malformed_log_is_refused_with_its_line(written, text, message):
    path = written(text)
    with pytest.raises(ValueError, match=re.escape(f"{path}{message}")):
        UCC5GTrace(path=path)


def test_real_logs_replay_their_length_and_volume(data):
    found = {path.name: UCC5GTrace(path=path) for path in sorted((data / "ucc_5g").glob("*.csv"))}
    assert len(found) == 4
    static = found["static_B_2020.02.27_18.39.27.csv"]
    assert static.data.period_s == 6654  # 18.39.27 to 20.30.20, and the last second
    assert static.mean_mbps == pytest.approx(79.7, abs=0.1)
    rate = static.rate("down", 3)
    assert rate.nbytes_between(0.0, 6654.0) == pytest.approx(79.7e6 / 8 * 6654, rel=0.01)
