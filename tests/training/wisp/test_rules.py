"""Operating thresholds, metrics and counts, by hand."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from serving.messages import DraftDecision
from training.wisp.evaluation import compare, confusion, count_drafts, evaluate
from training.wisp.rules import BalancedAccuracyRule, CoverageRule, RecallRule, coverage, threshold_at_recall
from training.wisp.samples import TokenSamples, clustered_pearson

CHANCES = np.array([0.1, 0.3, 0.35, 0.6, 0.8, 0.9])
STOOD = np.array([False, False, True, False, True, True])


@dataclass(frozen=True)
class Confident:
    """Says what the drafter's confidence is."""

    def probabilities(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return features[:, 0].astype(np.float64)

    def probability(self, features: Any) -> float:
        return float(features[0])


def test_a_threshold_has_the_expected_confusion_counts() -> None:
    found = confusion(CHANCES, STOOD, 0.5)
    assert (found.tn, found.fp, found.fn, found.tp) == (2, 1, 1, 2)
    metrics = evaluate(CHANCES, STOOD, 0.5)
    assert metrics["recall"] == metrics["specificity"] == pytest.approx(2 / 3)
    assert metrics["fpr"] == pytest.approx(1 / 3)
    assert metrics["auc"] == pytest.approx(8 / 9)
    assert metrics["brier"] == pytest.approx(((CHANCES - STOOD) ** 2).mean())


def test_calibration_is_the_distance_in_bins() -> None:
    chances = np.array([0.05, 0.05, 0.95, 0.95])
    assert evaluate(chances, np.array([False, False, True, True]), 0.5)["ece"] == pytest.approx(0.05)
    assert evaluate(chances, np.array([True, True, False, False]), 0.5)["ece"] == pytest.approx(0.95)


@pytest.mark.parametrize(("at", "threshold"), [(0.3, 0.9), (0.6, 0.8), (0.7, 0.35), (1.0, 0.35)])
def test_recall_is_reached_with_the_largest_threshold(at: float, threshold: float) -> None:
    assert threshold_at_recall(CHANCES, STOOD, at) == threshold


def test_a_recall_is_not_missed_by_rounding() -> None:
    """0.28 x 25 is a little more than 7."""
    assert threshold_at_recall(np.arange(25) / 25, np.ones(25, np.bool_), 0.28) == 18 / 25


def test_each_rule_maximises_its_objective(learnable: TokenSamples) -> None:
    fitted = Confident()
    chances, windows = fitted.probabilities(learnable.features), learnable.windows
    grid = np.unique(chances)
    balanced = [evaluate(chances, learnable.accepted, t)["balanced_accuracy"] for t in grid]
    found = evaluate(chances, learnable.accepted, BalancedAccuracyRule().threshold(fitted, learnable))
    assert found["balanced_accuracy"] == pytest.approx(max(balanced))
    threshold = RecallRule(0.75).threshold(fitted, learnable)
    above = grid[grid > threshold][0]
    assert confusion(chances, learnable.accepted, threshold).recall >= 0.75
    assert confusion(chances, learnable.accepted, above).recall < 0.75
    own = fitted.probabilities(windows.features)
    threshold = CoverageRule(0.92).threshold(fitted, learnable)
    fitting = [t for t in np.unique(own) if coverage(windows, own, t) >= 0.92]
    assert threshold == max(fitting)


@pytest.mark.parametrize("rule", [RecallRule, CoverageRule])
def test_a_rule_with_a_share_out_of_range_is_refused(rule: type) -> None:
    with pytest.raises(ValueError, match="it is a share between 0 and 1"):
        rule(1.5)


def chunks(*windows: tuple[int, int]) -> list[DraftDecision]:
    return [DraftDecision("s", 0, tuple(range(drafted)), {}, accepted) for drafted, accepted in windows]


def test_rounds_are_paired_session_by_session() -> None:
    without = count_drafts([chunks((8, 4), (8, 8)), chunks((8, 0))])
    with_it = count_drafts([chunks((4, 4), (4, 4), (4, 4)), chunks((1, 0))])
    found = compare(without, with_it, seed=0)
    assert found["acceptance_rate"]["without"][0] == pytest.approx(12 / 24)
    assert found["acceptance_rate"]["with"][0] == pytest.approx(12 / 13)
    assert found["tokens_per_round"]["ratio"][0] == pytest.approx((12 / 4 + 1) / (12 / 3 + 1))
    assert found["wasted_per_round"]["with"][0] == pytest.approx(1 / 4)
    value, low, high = found["acceptance_rate"]["without"]
    assert (low, high) == (0.0, 0.75)
    assert low < value < high
    assert compare(without, without, seed=0)["acceptance_rate"]["ratio"] == [1.0, 1.0, 1.0]


def test_without_any_draft_there_is_nothing_to_compare() -> None:
    with pytest.raises(ValueError, match="not one draft was made on the held-out prompts"):
        compare(count_drafts([[]]), count_drafts([[]]), seed=0)


def test_the_interval_of_a_correlation_resamples_sessions() -> None:
    a = np.array([0.0, 1.0, 2.0, 3.0])
    b = np.array([0.0, 1.0, 1.0, 3.0])
    session = np.array([0, 0, 1, 1])
    cell = clustered_pearson(a, b, session, 2)
    assert cell is not None
    assert np.mean(cell) == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert clustered_pearson(a, np.ones(4), session, 2) is None


def test_the_spread_of_a_correlation_is_that_of_resampled_sessions() -> None:
    chance = np.random.default_rng(3)
    session = np.repeat(np.arange(200), 20)
    a = chance.normal(size=4000) + chance.normal(size=200)[session]
    b = 2 * a + chance.normal(size=4000)
    cell = clustered_pearson(a, b, session, 200)
    assert cell is not None
    rows = [np.flatnonzero(session == i) for i in range(200)]
    drawn = [np.concatenate([rows[i] for i in chance.integers(200, size=200)]) for _ in range(300)]
    spread = np.std([np.corrcoef(a[own], b[own])[0, 1] for own in drawn])
    assert np.std(cell) / np.sqrt(200) == pytest.approx(spread, rel=0.15)
