import numpy as np
import pytest

from pipeline.report.estimate import Estimate, estimate_mean, estimate_seeds, pool
from pipeline.report.statistics import MeanError

OURS = [float(i % 3 == 0) for i in range(90)]
THEIRS = [float(i % 5 == 0) for i in range(90)]


def normal_half_width(values):
    return 1.96 * np.std(values) / len(values) ** 0.5


def test_the_interval_of_a_mean_is_near_the_normal_one():
    interval = estimate_mean(OURS).interval
    assert interval.mean == pytest.approx(1 / 3)
    assert interval.low == pytest.approx(1 / 3 - normal_half_width(OURS), abs=0.025)
    assert interval.high == pytest.approx(1 / 3 + normal_half_width(OURS), abs=0.025)


def test_the_coverage_of_intervals_over_prompts_is_near_their_level():
    samples = np.random.default_rng(7).binomial(1, 0.6, size=(200, 120)).astype(float)
    intervals = [estimate_mean(sample.tolist()).interval for sample in samples]
    assert 0.9 <= np.mean([interval.low <= 0.6 <= interval.high for interval in intervals]) <= 0.99


def test_a_difference_is_paired_value_by_value():
    shifted = estimate_mean([value + 0.1 for value in OURS]).paired_difference(estimate_mean(OURS))
    assert (shifted.interval.low, shifted.interval.high) == (pytest.approx(0.1), pytest.approx(0.1))
    half = normal_half_width([a - b for a, b in zip(OURS, THEIRS, strict=True)])
    interval = estimate_mean(OURS).paired_difference(estimate_mean(THEIRS)).interval
    assert interval.low == pytest.approx(1 / 3 - 0.2 - half, abs=0.025)


def test_an_interval_knows_what_the_seeds_make_and_says_their_range():
    three = pool([estimate_mean([value + seed for value in OURS], str(seed)) for seed in (0, 3, 4)])
    assert three.value == pytest.approx(1 / 3 + 7 / 3)
    assert three.seed_range == (pytest.approx(1 / 3), pytest.approx(4 + 1 / 3))
    assert three.interval.low < three.seed_range[0] + 0.2
    assert three.interval.high > three.seed_range[1] - 0.2


def test_equal_seeds_with_the_same_prompts_are_no_narrower_than_one():
    one = estimate_mean(OURS)
    three = pool([estimate_mean(OURS, str(seed)) for seed in (0, 3, 4)])
    assert three.interval == one.interval
    assert three.num_prompts == 90


def test_the_spread_between_two_seeds_is_widened_by_what_two_seeds_hide():
    """Two constants, 0 and 2: the mean of two draws has the variance 1/2, the unbiased one is 2 / 2 = 1."""
    two = pool([estimate_mean([value] * 40, str(value)) for value in (0.0, 2.0)])
    assert two.standard_error == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_an_interval_over_few_seeds_covers_the_mean_as_often_as_it_says(seeds):
    """Seeds of one normal distribution with the mean 0, and nothing else that is uncertain."""
    draws = np.random.default_rng(seeds).normal(size=(1000, seeds))
    intervals = [
        estimate_seeds({str(place): float(value) for place, value in enumerate(own)}).interval for own in draws
    ]
    covered = sum(interval.low < 0 < interval.high for interval in intervals)
    assert 925 <= covered <= 970


def test_the_error_of_a_mean_is_normal_by_prompts_and_student_s_by_seeds():
    assert MeanError.of([1.0], 0.5).chance_above(1.0) == pytest.approx(0.02275, abs=1e-5)
    assert MeanError.of([1.0, 1.0], 0.5).chance_above(1.0) == pytest.approx(0.02275, abs=1e-5)
    seeds = MeanError.of([0.0, 1.0, 2.0], (1 / 3) ** 0.5)  # nothing but seeds
    assert seeds.chance_above(4.303 * (1 / 3) ** 0.5) == pytest.approx(0.025, abs=1e-5)
    assert seeds.half_width() == pytest.approx(4.303 * (1 / 3) ** 0.5, rel=1e-3)
    both = MeanError.of([0.0, 1.0, 2.0], (1 / 3 + 1) ** 0.5)
    assert both.half_width() > max(seeds.half_width(), MeanError(1.0, 0.0, 1).half_width())
    assert both.chance_above(both.half_width()) == pytest.approx(0.025, rel=1e-4)
    assert MeanError(0.0, 0.0, 3).chance_above(0.1) == 0


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
@pytest.mark.parametrize("shared", [True, False])
def test_p_values_over_three_seeds_are_small_no_more_often_than_they_say(share, shared):
    """Three seeds of one distribution, and prompts with this part of its variance, the same of all seeds or others."""
    draws = np.random.default_rng(0)
    seeds, count = draws.normal(size=(2000, 3)), 1 if shared else 3
    prompts = draws.normal(size=(2000, count)) * (share * count) ** 0.5
    found = [
        2 * MeanError.of(own.tolist(), (np.var(own, ddof=1) / 3 + share) ** 0.5).chance_above(abs(own.mean()))
        for own in seeds + prompts
    ]
    assert sum(p < 0.05 for p in found) < 0.05 * 2000
    assert sum(p < 0.001 for p in found) <= 6


def test_a_difference_that_every_seed_shares_stays_sure_though_the_seeds_differ():
    ours = pool([estimate_mean([value + seed + 0.5 for value in OURS], str(seed)) for seed in (0, 3, 4)])
    theirs = pool([estimate_mean([value + seed for value in OURS], str(seed)) for seed in (0, 3, 4)])
    interval = ours.paired_difference(theirs).interval
    assert (interval.low, interval.high) == (pytest.approx(0.5), pytest.approx(0.5))


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


def test_a_ratio_is_of_all_common_seeds_or_not_known():
    """The seeds with a denominator are no sample of the seeds."""
    ours, theirs = Estimate({"0": 4.0, "3": 6.0}), Estimate({"0": 2.0, "3": 0.0})
    assert ours.paired_ratio(theirs) is None
    assert Estimate({"0": 4.0}).paired_ratio(theirs).values == {"0": 2.0}


def test_one_number_has_neither_interval_nor_spread():
    number = Estimate({"": 4.0}).scaled(2).subtract(3)
    assert (number.value, number.interval, number.seed_range) == (5.0, None, None)
