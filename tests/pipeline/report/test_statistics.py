import numpy as np
import pytest

from pipeline.report.statistics import (
    PairedSums,
    Percentiles,
    holm,
    paired_p_values,
    percentile,
)  # fmt: skip


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
    monkeypatch.setattr("pipeline.report.statistics._SIGNS_AT_ONCE", 64)
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
