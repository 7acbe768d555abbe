"""Outages of a link: schedules, disconnections, and their effect on messages."""

from itertools import islice, pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.keyed_random import key
from serving.network.link import Link
from serving.network.mahimahi import MahimahiTrace
from serving.network.outages import ListedOutages, PeriodicOutages
from serving.network.trace import CapacityCurve, ReplayedRate


def link(*windows, detect_ms=1000, **options):
    """1 MB a second, 10 ms away."""
    return Link(8, 8, delay_ms=10, outages=ListedOutages(windows), detect_ms=detect_ms, **options)


def arrivals(channel, *messages):
    return [channel.arrival_s(nbytes, now) for nbytes, now in messages]


def test_a_listed_schedule_is_the_same_for_every_device():
    listed = ListedOutages(((1, 2), (5, 9)))
    assert [*listed.outage_intervals(1)] == [*listed.outage_intervals(2)] == [(1, 2), (5, 9)]
    assert listed.max_duration_s == 4


def test_a_periodic_schedule_has_no_end():
    periodic = PeriodicOutages(period_s=20, duration_s=3, first_start_s=5)
    assert [*islice(periodic.outage_intervals(0), 3)] == [(5, 8), (25, 28), (45, 48)]


def test_devices_have_outages_at_different_times():
    periodic = PeriodicOutages(period_s=20, duration_s=3, jitter_s=10)
    firsts = [next(periodic.outage_intervals(key(0, f"device-{i}")))[0] for i in range(100)]
    assert 0 <= min(firsts) < 5
    assert 15 < max(firsts) < 30
    windows = [*islice(periodic.outage_intervals(7), 100)]
    assert windows == [*islice(periodic.outage_intervals(7), 100)]
    assert all(up == pytest.approx(down + 3) for down, up in windows)
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(windows)]
    assert 10 < min(gaps) < 15 < 25 < max(gaps) < 30


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ListedOutages(((2, 1),)), r"outages: \[2, 1\] must be seconds of the run, 0 or more"),
        (lambda: ListedOutages(((-1, 1),)), r"outages: \[-1, 1\] must be"),
        (lambda: ListedOutages(((1, inf),)), r"outages: \[1, inf\] must be"),
        (lambda: ListedOutages(((1, 5), (4, 6))), "one begins at 4 s, but the previous one ends at 5 s"),
        (
            lambda: PeriodicOutages(period_s=5, duration_s=5),
            "duration_s=5 and jitter_s=0 must leave some of period_s=5 seconds",
        ),
        (lambda: PeriodicOutages(period_s=5, duration_s=2, jitter_s=3), "duration_s=2 and jitter_s=3 must leave some"),
        (
            lambda: PeriodicOutages(period_s=5, duration_s=0),
            "duration_s=0, jitter_s=0 must be finite, the first two above 0",
        ),
        (lambda: PeriodicOutages(period_s=inf, duration_s=1), "period_s=inf"),
        (lambda: PeriodicOutages(period_s=5, duration_s=1, first_start_s=-1), "first_start_s=-1 must be 0 or more"),
        (lambda: link(detect_ms=-1), "network.detect_ms=-1 must be 0 or more"),
    ],
)
def test_impossible_schedules_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_link_describes_its_outages():
    assert link((1, 2), (4, 8)).described.endswith("0.0% lost, down 2 times, 5 s in all, noticed after 1 s")
    flaky = Link(8, 8, outages=PeriodicOutages(period_s=20, duration_s=3), detect_ms=250)
    assert flaky.described.endswith("0.0% lost, down 3 s every 20 s, noticed after 0.25 s")


def test_only_long_outages_are_disconnections():
    flaky = link((1, 1.5), (5, 8), (10, 11), (20, 21.5))
    assert [*flaky.disconnections(0)] == [(6, 8), (21, 21.5)]
    assert [*Link(8, 8).disconnections(0)] == [*Link(8, 8).outage_intervals(0)] == []


def test_endless_short_outages_are_no_disconnections():
    assert [*Link(8, 8, outages=PeriodicOutages(period_s=5, duration_s=1, jitter_s=1)).disconnections(0)] == []
    noticed = Link(
        8, 8, outages=PeriodicOutages(period_s=5, duration_s=1, first_start_s=2), detect_ms=400
    ).disconnections(0)
    assert [*islice(noticed, 2)] == [(pytest.approx(2.4), 3), (pytest.approx(7.4), 8)]


@pytest.mark.parametrize(
    ("what", "messages", "expected"),
    [
        ("before", [(1e6, 0.0)], [1.01]),
        ("under way when a short one comes: it waits", [(1e6, 1.5)], [3.01]),
        ("said during a short one: it waits", [(1e6, 2.2)], [3.51]),
        ("behind one that waits", [(1e6, 1.5), (1e6, 1.6)], [3.01, 4.01]),
        ("left before, arrives during", [(0, 1.995)], [2.005]),
        ("under way when a long one comes: gone", [(1e6, 9.5), (0, 13.0)], [inf, 13.01]),
        ("queued behind one that is gone: gone too", [(1e6, 9.5), (0, 9.6), (0, 13.0)], [inf, inf, 13.01]),
        ("sent before the detection: lost", [(0, 10.5), (0, 13.0)], [inf, 13.01]),
        ("said after both ends noticed: gone", [(0, 12.9), (0, 13.0)], [inf, 13.01]),
        ("the channel is free again", [(9e6, 9.0), (1e6, 13.0)], [inf, 14.01]),
        ("across a short and into a long one: gone", [(9e6, 1.5), (1e6, 14.0)], [inf, 15.01]),
        ("after the last", [(1e6, 1000.0)], [1001.01]),
    ],
)
def test_outages_delay_or_drop_messages(what, messages, expected):
    channel = link((2.0, 2.5), (10.0, 13.0)).channel("up", 0)
    assert arrivals(channel, *messages) == pytest.approx(expected), what


def test_messages_in_flight_when_an_outage_is_noticed_are_lost():
    far = Link(8, 8, delay_ms=1500, outages=ListedOutages(((10.0, 13.0),)))
    assert arrivals(far.channel("up", 0), (0, 9.0), (0, 9.6), (0, 9.7), (0, 13.0)) == pytest.approx(
        [10.5, inf, inf, 14.5]
    )


def test_a_message_that_arrives_as_an_outage_is_noticed_has_arrived():
    far = Link(8, 8, delay_ms=1500, outages=ListedOutages(((10.0, 13.0),)))
    assert far.channel("up", 0).arrival_s(0, 9.5) == 11.0


def test_an_outage_as_long_as_the_detection_time_only_delays():
    periodic = Link(8, 8, outages=PeriodicOutages(period_s=10.1, duration_s=1.0, first_start_s=0.3), detect_ms=1000)
    channel = periodic.channel("up", 0)
    for down_s, up_s in islice(periodic.outage_intervals(0), 50):
        assert channel.arrival_s(0, down_s + 0.5) == pytest.approx(up_s)


def test_both_directions_of_a_device_are_down_together():
    flaky = Link(8, 8, outages=PeriodicOutages(period_s=20, duration_s=3))
    for stream in (key(0, "device-0"), key(0, "device-1")):
        down_s, up_s = next(flaky.outage_intervals(stream))
        for direction in ("up", "down"):
            assert arrivals(flaky.channel(direction, stream), (0, down_s + 1e-3), (0, up_s)) == [inf, up_s]


def test_a_trace_runs_on_while_the_link_is_down(tmp_path):
    path = tmp_path / "trace"
    path.write_text("100\n200\n300\n400\n500\n")
    trace = MahimahiTrace(path=path, start="begin")
    short = Link(uplink=trace, downlink_mbps=1, outages=ListedOutages(((0.15, 0.35),)))
    assert short.channel("up", 0).arrival_s(3000, 0.0) == pytest.approx(0.4)
    assert short.channel("up", 0).arrival_s(1500, 0.0) == pytest.approx(0.1)
    assert short.channel("up", 0).arrival_s(4500, 0.0) == pytest.approx(0.5)


def test_outages_that_cover_all_capacity_of_a_trace_are_refused():
    class Blinking:
        directions = ("up",)
        mean_mbps = 1.0
        described = "blinking"

        def rate(self, direction, stream):
            return ReplayedRate(CapacityCurve.from_steps([(1.0, 0.0), (2.0, 8.0)], "blinking"))

    dark = Link(
        uplink=Blinking(),
        downlink_mbps=1,
        outages=PeriodicOutages(period_s=2, duration_s=1.25, first_start_s=0.9),
        detect_ms=2000,
    )
    with pytest.raises(ValueError, match="the outages cover all times at which the trace carries"):
        dark.channel("up", 0).arrival_s(100, 1.0)


@given(
    st.lists(st.tuples(st.integers(0, 3_000_000), st.floats(0, 4)), min_size=1, max_size=30),
    st.integers(0, 2**32),
    st.sampled_from([0, 300, 1000]),
)
def test_messages_arrive_in_order_and_not_across_a_disconnection(messages, stream, detect_ms):
    shaky = Link(
        8,
        8,
        delay_ms=5,
        jitter_ms=30,
        loss=0.2,
        timeout_ms=100,
        outages=PeriodicOutages(period_s=7, duration_s=0.8, jitter_s=2),
        detect_ms=detect_ms,
    )
    channel, now, last = shaky.channel("up", stream), 0.0, 0.0
    breaks = [*islice(shaky.disconnections(stream), 100)]
    windows = [*islice(shaky.outage_intervals(stream), 100)]
    for nbytes, pause_s in messages:
        now += pause_s
        arrival = channel.arrival_s(nbytes, now)
        met = next(((lost_s, joined_s) for lost_s, joined_s in breaks if joined_s > now), (inf, inf))
        if arrival == inf:
            assert now < met[1] < inf
            continue
        up_s = arrival - now - sum(max(0.0, min(up, arrival) - max(down, now)) for down, up in windows)
        assert nbytes * 1e-6 <= up_s + 1e-6
        assert max(last, now + nbytes * 1e-6 + 0.005 - 1e-9) <= arrival <= met[0]
        last = arrival
