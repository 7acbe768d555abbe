"""Recorded pings as message delay: computed by hand, recorded, and malformed."""

import re

import pytest

from serving.network.channel import MultiLinkChannel
from serving.network.link import Link
from serving.network.ucc_5g import PingTrace, UCC5GTrace

HEADER = "Timestamp,DL_bitrate,State,PINGAVG\n"


def at(second, ping, state="D"):
    return f"2019.12.16_11.49.{second:02d},8000,{state},{ping}\n"


LOG = HEADER + at(9, 5, "I") + at(10, "-") + at(12, "80.0") + at(16, "200") + at(19, "-")
"""Ten seconds: 80 ms from the third on, and in the first two for want of others; 200 ms from the seventh on."""


def test_a_ping_holds_until_the_next_and_the_recording_repeats(written):
    delay = PingTrace(path=written(LOG), start="begin").delay(0)
    assert [delay(now) for now in (0, 2, 5.9, 6, 9.9, 10, 16, 106)] == pytest.approx(
        [0.04, 0.04, 0.04, 0.1, 0.1, 0.04, 0.1, 0.1]
    )


def test_each_message_is_delayed_by_the_current_ping_without_overtaking(written):
    path = written(LOG)
    link = Link(uplink_mbps=8, downlink=UCC5GTrace(path=path, start="begin"), delay=PingTrace(path=path, start="begin"))
    channel = link.channel("down", 0)
    times = [(1000, 0.0), (1000, 6.0), (0, 9.95), (0, 10.0), (0, 11.0)]
    assert [channel.arrival_s(nbytes, now) for nbytes, now in times] == pytest.approx(
        [0.041, 6.101, 10.05, 10.05, 11.04]
    )
    assert "0 ms delay, pings of 128 ms on average (trace.txt), 0 ms jitter" in link.described


def test_a_message_is_delayed_by_the_ping_at_its_departure(written):
    link = Link(8, 8, delay=PingTrace(path=written(LOG), start="begin"))
    assert link.channel("up", 0).arrival_s(1_000_000, 5.5) == pytest.approx(6.5 + 0.1)


def test_the_mean_transfer_holds_the_pings_mean_over_time(written):
    """Six seconds of 80 ms and four of 200: 64 ms one way, whose bytes take 1 ms more."""
    link = Link(8, 8, delay_ms=2, delay=PingTrace(path=written(LOG), start="begin"))
    assert link.mean_transfer_s(1000, "up") == pytest.approx(0.001 + 0.002 + 0.064)


def test_a_relay_over_a_link_with_pings_takes_their_mean(written):
    own, behind = Link(8, 8), Link(8, 8, delay=PingTrace(path=written(LOG), start="begin"))
    channel = MultiLinkChannel(own.channel("up", 1), [(behind, "up")])
    assert channel.arrival_s(1000, 0.0) == pytest.approx(0.002 + 0.064)


def test_rate_and_pings_of_a_device_start_at_the_same_moment(written):
    path = written(LOG)
    rate, pings = UCC5GTrace(path=path), PingTrace(path=path)
    for stream in range(20):
        delay, offset_s = pings.delay(stream), rate.rate("down", stream).offset_s
        assert delay(0.0) == pytest.approx(0.1 if offset_s >= 6 else 0.04)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + at(10, "soon"), " line 2: PINGAVG is 'soon', needed are milliseconds, 0 or more, or -"),
        (HEADER + at(10, 1) + at(11, "nan"), " line 3: PINGAVG is 'nan'"),
        (HEADER + at(10, -5), " line 2: PINGAVG is '-5'"),
        (HEADER + at(10, "-"), ": no ping was taken during downloads; use network.delay_ms"),
        (HEADER + at(10, 1) + at(9, 1), " line 3: Timestamp is earlier than the previous line"),
        ("Timestamp,State\n", ' line 1: the header has no column "PINGAVG"'),
    ],
)
def test_a_malformed_log_is_refused_with_its_line(written, text, message):
    path = written(text)
    with pytest.raises(ValueError, match=re.escape(f"{path}{message}")):
        PingTrace(path=path)


def test_real_logs_hold_the_pings_that_conf_took_its_delay_from(data):
    found = PingTrace(path=data / "ucc_5g" / "static_B_2020.02.27_18.39.27.csv", start="begin")
    assert found.data.period_s == 6654
    assert len(found.data.times_s) > 400
    assert min(found.data.delays_s) == pytest.approx(0.033, abs=0.001)
