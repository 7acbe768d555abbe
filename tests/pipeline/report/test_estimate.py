import pytest

from pipeline.report import statistics
from pipeline.report.estimate import Estimate, estimate_mean, pool

OURS = [float(i % 3 == 0) for i in range(90)]
THEIRS = [float(i % 5 == 0) for i in range(90)]


def test_a_mean_has_the_interval_of_the_bootstrap_of_means():
    expected = statistics.mean_interval(OURS, seed=1)
    interval = estimate_mean(OURS).interval
    assert interval.mean == pytest.approx(expected.mean)
    assert interval.low == pytest.approx(expected.low, abs=0.025)
    assert interval.high == pytest.approx(expected.high, abs=0.025)


def test_a_difference_is_paired_value_by_value():
    shifted = estimate_mean([value + 0.1 for value in OURS]).paired_difference(estimate_mean(OURS))
    assert (shifted.interval.low, shifted.interval.high) == (pytest.approx(0.1), pytest.approx(0.1))
    expected = statistics.mean_interval([a - b for a, b in zip(OURS, THEIRS, strict=True)], seed=1)
    interval = estimate_mean(OURS).paired_difference(estimate_mean(THEIRS)).interval
    assert interval.low == pytest.approx(expected.low, abs=0.025)


def test_seeds_are_strata_and_their_spread_is_reported():
    three = pool([estimate_mean([value + seed for value in OURS], str(seed)) for seed in (0, 3, 4)])
    assert three.value == pytest.approx(1 / 3 + 7 / 3)
    assert three.seed_range == (pytest.approx(1 / 3), pytest.approx(4 + 1 / 3))
    one = estimate_mean(OURS).interval
    assert three.interval.high - three.interval.low < 0.75 * (one.high - one.low)


def test_rows_meet_in_the_seeds_that_both_have():
    ours = pool([estimate_mean(OURS, "0"), estimate_mean(OURS, "3")])
    difference = ours.paired_difference(estimate_mean(THEIRS, "3"))
    assert list(difference.values) == ["3"]
    assert ours.paired_difference(estimate_mean(THEIRS, "4")) is None
    assert pool([]) is None


def test_other_prompts_leave_the_values_and_no_interval():
    difference = estimate_mean(OURS).paired_difference(estimate_mean(THEIRS[:60]))
    assert difference.interval is None
    assert difference.value == pytest.approx(1 / 3 - 0.2)


def test_a_ratio_needs_something_to_divide_by():
    ratio = estimate_mean(OURS).paired_ratio(estimate_mean(THEIRS))
    assert ratio.value == pytest.approx(5 / 3)
    assert ratio.interval.low < 5 / 3 < ratio.interval.high
    assert estimate_mean(OURS).paired_ratio(estimate_mean([0.0] * 90)) is None


def test_one_number_has_neither_interval_nor_spread():
    number = Estimate({"": 4.0}).scaled(2).subtract(3)
    assert (number.value, number.interval, number.seed_range) == (5.0, None, None)
