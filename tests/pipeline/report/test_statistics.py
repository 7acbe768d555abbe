import numpy as np
import pytest

from pipeline.report.statistics import (
    PairedSums,
    Percentiles,
    holm,
    mean_interval,
    paired_p_values,
    percentile,
)  # fmt: skip


def test_intervals_are_reproducible_and_nearly_equal_between_seeds():
    values = np.random.default_rng(1).normal(size=200).tolist()
    assert mean_interval(values, seed=3) == mean_interval(values, seed=3)
    assert mean_interval(values, seed=3).low == pytest.approx(mean_interval(values, seed=4).low, abs=0.03)


def test_the_interval_is_near_the_normal_one():
    values = np.random.default_rng(1).normal(5, 2, size=400)
    interval = mean_interval(values.tolist(), seed=0)
    half = 1.96 * values.std() / 20
    assert interval.low == pytest.approx(values.mean() - half, abs=0.03)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.03)


def test_the_coverage_of_intervals_is_near_their_level():
    rng = np.random.default_rng(7)
    samples = rng.binomial(1, 0.6, size=(200, 120)).astype(float)
    intervals = [mean_interval(sample.tolist(), seed=0, level=0.9, resamples=400) for sample in samples]
    covered = np.mean([interval.low <= 0.6 <= interval.high for interval in intervals])
    assert 0.84 <= covered <= 0.96


def test_values_of_one_prompt_go_together():
    """Twenty prompts, each asked twenty times with the same answer, say as much as twenty values."""
    one_each = [float(i % 5 != 0) for i in range(20)]
    prompts = [f"{i}" for i in range(20)]
    alone = mean_interval(one_each, seed=0)
    assert mean_interval(one_each, seed=0, clusters=prompts) == alone
    repeated = [value for value in one_each for _ in range(20)]
    often = mean_interval(repeated, seed=0, clusters=sorted(prompts * 20, key=int))
    assert often.mean == pytest.approx(0.8)
    assert (often.low, often.high) == (pytest.approx(alone.low), pytest.approx(alone.high))
    assert mean_interval([1.0, 0.0, 0.5], seed=0, clusters=["a", "b", "b"]).mean == 0.5


def test_chunks_do_not_change_the_result(monkeypatch):
    values = list(range(50))
    whole = mean_interval(values, seed=0)
    monkeypatch.setattr("pipeline.report.statistics._INDICES_AT_ONCE", 64)
    assert mean_interval(values, seed=0) == whole


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([], {}, "finite values, at least one, got 0"),
        ([1.0, float("nan")], {}, "finite values"),
        ([1.0], {"level": 1.0}, "0 < level < 1"),
        ([1.0], {"resamples": 10}, "100 resamples or more, got 0.95 and 10"),
    ],
)
def test_values_that_cannot_be_resampled_are_refused(values, options, message):
    with pytest.raises(ValueError, match=message):
        mean_interval(values, seed=0, **options)


def means(values):
    return np.column_stack([values, np.ones(len(values))])


def p_value(ours, theirs, **options):
    return paired_p_values([PairedSums(ours, theirs, np.divide)], seed=0, **options)[0]


def test_a_paired_p_value_is_that_of_all_permutations():
    ours, theirs = np.array([3.0, 5.0, 4.0, 6.0]), np.array([1.0, 4.0, 2.0, 6.5])
    signs = np.array(np.meshgrid(*[(-1, 1)] * 4)).reshape(4, -1).T
    exact = np.mean(np.abs(signs @ (ours - theirs)) >= abs((ours - theirs).sum()) - 1e-9)
    assert p_value(means(ours), means(theirs)) == pytest.approx(exact, abs=0.01)
    assert p_value(means(ours), means(ours)) == 1.0


def test_paired_p_values_of_equal_policies_are_uniform():
    rng = np.random.default_rng(5)
    p_values = [p_value(means(rng.normal(size=30)), means(rng.normal(size=30)), permutations=499) for _ in range(200)]
    assert 0.01 <= np.mean(np.array(p_values) <= 0.05) <= 0.10


def test_chunks_of_permutations_do_not_change_the_p_value(monkeypatch):
    rng = np.random.default_rng(5)
    ours, theirs = means(rng.normal(0.2, size=40)), means(rng.normal(size=40))
    whole = p_value(ours, theirs)
    monkeypatch.setattr("pipeline.report.statistics._INDICES_AT_ONCE", 64)
    assert p_value(ours, theirs) == pytest.approx(whole, abs=0.02)
    same = PairedSums(ours, ours, np.divide)  # of which every permutation is as extreme
    assert paired_p_values([same], seed=0, permutations=100) == [1.0]


def test_tests_beside_each_other_have_the_p_values_that_they_have_alone():
    rng = np.random.default_rng(5)
    tests = [PairedSums(means(rng.normal(0.3, size=n)), means(rng.normal(size=n)), np.divide) for n in (40, 12, 40, 40)]
    alone = [paired_p_values([test], seed=0)[0] for test in tests]
    assert paired_p_values(tests, seed=0) == alone
    assert paired_p_values([], seed=0) == []


def test_holm_adjusts_by_rank_and_never_lowers_a_p_value_below_a_smaller_one():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_percentiles_of_known_values():
    spread = Percentiles.of([4.0, None, 1.0, 2.0, 3.0, 5.0])
    assert spread == Percentiles(3.0, 3.0, pytest.approx(4.6), pytest.approx(4.96))


def test_one_value_is_all_of_its_percentiles():
    assert Percentiles.of([2.5]) == Percentiles(2.5, 2.5, 2.5, 2.5)


def test_no_values_have_no_percentiles():
    assert Percentiles.of([None, None]) is None


@pytest.mark.parametrize(("share", "value"), [(0.0, 10.0), (0.25, 12.5), (0.5, 15.0), (1.0, 20.0)])
def test_percentiles_interpolate(share, value):
    assert percentile([10.0, 20.0], share) == value
