"""Estimates by hand, and their spread against answers that are really resampled."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from training.fitting.cluster_statistics import auc, clustered_auc, clustered_ratio, skewness, spearman, top_share

RNG = np.random.default_rng(7)
ANSWERS = 60
ANSWER = np.repeat(np.arange(ANSWERS), RNG.integers(2, 12, ANSWERS))
EASE = RNG.normal(size=ANSWERS)[ANSWER]
SCORES = np.round(EASE + RNG.normal(size=len(ANSWER)), 1)
POSITIVE = RNG.random(len(ANSWER)) * 3 < EASE + 1.2


def resampled(measure: Callable[[NDArray[np.int64]], float | None]) -> float:
    """The standard deviation of `measure(tokens)` over answers drawn with replacement."""
    members = [np.flatnonzero(np.equal(ANSWER, i)) for i in range(ANSWERS)]
    rng = np.random.default_rng(1)
    draws = [np.concatenate([members[i] for i in rng.integers(0, ANSWERS, ANSWERS)]) for _ in range(600)]
    return float(np.std([measure(draw) for draw in draws]))


def test_the_ratio_of_known_clusters() -> None:
    """Answer 0 has 1 of 2, answer 1 has 2 of 2, answer 2 nothing: 3 of 4, and not the mean of one half and one."""
    chosen = np.array([True, True, True, True, False])
    cell = clustered_ratio(chosen & np.array([True, False, True, True, True]), chosen, np.array([0, 0, 1, 1, 2]), 3)
    assert cell is not None
    assert np.mean(cell) == pytest.approx(0.75)
    assert cell == pytest.approx([0.375, 1.125, 0.75])


def test_a_ratio_with_denominator_zero_is_unknown() -> None:
    assert clustered_ratio(np.zeros(2), np.zeros(2), np.array([0, 1]), 2) is None


def test_the_spread_of_a_ratio_is_that_of_resampled_answers() -> None:
    cell = clustered_ratio(POSITIVE & (SCORES > 0), SCORES > 0, ANSWER, ANSWERS)
    expected = resampled(lambda tokens: POSITIVE[tokens][SCORES[tokens] > 0].mean())
    assert np.std(cell or []) / ANSWERS**0.5 == pytest.approx(expected, rel=0.15)


def test_auc_is_that_of_all_tokens() -> None:
    assert np.mean(clustered_auc(SCORES, POSITIVE, ANSWER, ANSWERS) or []) == pytest.approx(auc(SCORES, POSITIVE))


def test_the_spread_of_an_auc_is_that_of_resampled_answers() -> None:
    expected = resampled(lambda tokens: auc(SCORES[tokens], POSITIVE[tokens]))
    assert np.std(clustered_auc(SCORES, POSITIVE, ANSWER, ANSWERS) or []) / ANSWERS**0.5 == pytest.approx(
        expected, rel=0.15
    )


@pytest.mark.parametrize("kind", [True, False])
def test_auc_of_one_class_is_unknown(kind: bool) -> None:
    assert clustered_auc(np.arange(3.0), np.full(3, kind), np.arange(3), 3) is None


def test_rank_correlation_and_skewness_equal_scipy() -> None:
    other = np.round(SCORES + RNG.normal(size=len(SCORES)))
    assert spearman(SCORES, other) == pytest.approx(stats.spearmanr(SCORES, other).statistic)
    assert skewness(np.exp(SCORES)) == pytest.approx(stats.skew(np.exp(SCORES)))


def test_constants_have_no_rank_correlation_and_skewness() -> None:
    assert spearman(np.ones(3), np.arange(3.0)) is None
    assert skewness(np.ones(3)) is None is skewness(np.array([]))


@pytest.mark.parametrize(
    ("share", "chosen"), [(0.2, [1]), (0.4, [1, 2]), (0.5, [1, 2, 4]), (1.0, [0, 1, 2, 3, 4]), (0.0, [])]
)
def test_top_share_selects_the_highest_scores(share: float, chosen: list[int]) -> None:
    scores = np.array([0.1, 0.9, 0.5, 0.2, 0.5])
    assert np.flatnonzero(top_share(scores, share)).tolist() == chosen
