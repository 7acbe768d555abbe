"""Replayed capacity curves: departure times computed by hand, and invariants."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.network.trace import CapacityCurve, ReplayedRate

STEPS = CapacityCurve.from_steps([(1.0, 8.0), (3.0, 0.0), (4.0, 16.0)], "steps")
"""1 MB in the first second, nothing for two, 2 MB in the fourth; then again."""

MB = 1_000_000


@pytest.mark.parametrize(
    ("nbytes", "start", "sent"),
    [
        (0, 2.0, 2.0),
        (MB / 2, 0.0, 0.5),
        (MB, 0.0, 1.0),
        (MB + 1000, 0.0, 3.0005),
        (MB / 2, 2.0, 3.25),
        (MB, 0.5, 3.25),
        (3 * MB, 0.0, 4.0),
        (3 * MB + MB / 2, 0.0, 4.5),
        (300 * MB, 0.0, 400.0),
        (300 * MB, 1000.0, 1400.0),
        (2 * MB, 3.5, 3.5 + 0.5 + 1.0),
    ],
)
def test_bytes_leave_in_steps_and_the_recording_begins_again(nbytes, start, sent):
    assert ReplayedRate(STEPS).departure_s(nbytes, start) == pytest.approx(sent)


def test_a_replay_may_start_anywhere():
    late = ReplayedRate(STEPS, offset_s=2.5)
    assert late.departure_s(MB, 0.0) == pytest.approx(1.0)
    assert late.nbytes_between(0.0, 2.5) == pytest.approx(3 * MB)
    assert late.departure_s(300 * MB, 6.0) == pytest.approx(406.0)


def test_nbytes_between_counts_what_can_leave():
    assert [ReplayedRate(STEPS).nbytes_between(0, end) for end in (0, 0.5, 2, 3.5, 4, 9)] == pytest.approx(
        [0, MB / 2, MB, 2 * MB, 3 * MB, 7 * MB]
    )
    assert STEPS.mean_mbps == pytest.approx(6)


def test_a_trace_of_zero_rates_is_refused():
    with pytest.raises(ValueError, match="quiet: every rate is 0, so no message would ever leave"):
        CapacityCurve.from_steps([(1.0, 0.0), (5.0, 0.0)], "quiet")


STEP = st.tuples(st.integers(1, 5000), st.sampled_from([0.0, 0.0, 0.1, 1.0, 12.0, 96.0, 400.0]))
REPLAYS = st.builds(
    lambda steps, offset_s: ReplayedRate(
        CapacityCurve.from_steps(
            [(sum(ms for ms, _ in steps[: i + 1]) / 1e3, mbps) for i, (_, mbps) in enumerate(steps)] + [(60.0, 1.0)],
            "drawn",
        ),
        offset_s,
    ),
    st.lists(STEP, max_size=10),
    st.floats(0, 60),
)
SIZES = st.integers(1, 5_000_000)
STARTS = st.floats(0, 10_000)


@given(REPLAYS, SIZES, SIZES, STARTS)
def test_more_bytes_never_leave_earlier(rate, a, b, start):
    assert start <= rate.departure_s(a, start) <= rate.departure_s(a + b, start)


@given(REPLAYS, SIZES, STARTS, st.floats(0, 100))
def test_a_later_start_never_ends_earlier(rate, nbytes, start, pause_s):
    assert rate.departure_s(nbytes, start) <= rate.departure_s(nbytes, start + pause_s) + 1e-6


@given(REPLAYS, SIZES, SIZES, STARTS)
def test_two_messages_back_to_back_are_one(rate, a, b, start):
    """Within a byte: a message that ends where a gap begins may be on either side of it by rounding."""
    together = rate.departure_s(b, rate.departure_s(a, start))
    assert rate.departure_s(a + b - 1, start) - 1e-6 <= together <= rate.departure_s(a + b + 1, start) + 1e-6


@given(REPLAYS, SIZES, STARTS)
def test_bytes_between_start_and_departure_are_the_bytes_sent(rate, nbytes, start):
    assert rate.nbytes_between(start, rate.departure_s(nbytes, start)) == pytest.approx(nbytes, abs=1)


@given(REPLAYS, SIZES, STARTS)
def test_a_replay_one_period_later_is_the_same(rate, nbytes, start):
    lap_s = rate.curve.period_s
    moved = replace(rate, offset_s=rate.offset_s + lap_s)
    assert moved.nbytes_between(0, start) == pytest.approx(rate.nbytes_between(0, start), rel=1e-6, abs=1)
    assert moved.departure_s(nbytes + 1, start) >= rate.departure_s(nbytes, start) - 1e-6
    assert moved.departure_s(nbytes, start) <= rate.departure_s(nbytes + 1, start) + 1e-6


class Counted(list):
    """A list that counts how often it is looked at."""

    looks = 0

    def __getitem__(self, index):
        Counted.looks += 1
        return super().__getitem__(index)


def test_a_lookup_costs_the_logarithm_of_the_trace_and_no_laps():
    whole = CapacityCurve.from_steps([(second + 1.0, float(second % 7)) for second in range(2**14)], "long")
    rate = ReplayedRate(CapacityCurve(Counted(whole.times_s), Counted(whole.nbytes)))
    Counted.looks = 0
    ends = [rate.departure_s(nbytes, 12_345.6) for nbytes in (100, MB, 1e12)]
    assert Counted.looks < 3 * 50
    assert all(before < after for before, after in pairwise(ends))
    assert ends[2] > 10 * whole.period_s
