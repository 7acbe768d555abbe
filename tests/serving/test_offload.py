"""Which drafts are sent: Synera's two probabilities by hand, and its budget."""

from itertools import pairwise
from math import exp
from typing import Any

import pytest

from serving.luck import key, luck
from serving.messages import INF, Call
from serving.nodes.session import Session
from serving.slots.offload import Always, ConfidenceImportance, Handover, Never, p_confidence, p_importance
from serving.thresholds import Thresholds


def thresholds(confidence: list[float], importance: list[float], c_th: float = 0.7) -> Thresholds:
    return Thresholds(c_th, 0.7, tuple(confidence), tuple(importance), {})


def uniform(n: int = 400, c_th: float = 0.7) -> Thresholds:
    """Chunks whose two scores are spread evenly and independently."""
    stream = key(0, "chunks")
    scores = [[luck(stream, i, name) for i in range(n)] for name in ("confidence", "importance")]
    return thresholds(*scores, c_th=c_th)


def drafted(confidence: float, importance: float, name: str = "s") -> Session:
    s = Session(Call(name, (1, 2, 3), 20), 0)
    s.draft, s.scores = [1, 2], {"confidence": [confidence, confidence], "importance": [importance, importance]}
    return s


def share_sent(offload: ConfidenceImportance, profiled: Thresholds, draws: int = 20) -> float:
    """How often chunks like the profiled ones are really sent."""
    chunks = list(zip(profiled.confidence, profiled.importance, strict=True))
    sent = [offload.ask(drafted(c, i, f"s{n} {j}")) for j, (c, i) in enumerate(chunks) for n in range(draws)]
    return sum(sent) / len(sent)


# Synera, section 4.2.


@pytest.mark.parametrize(
    ("c", "expected"),
    [
        (0.3, 1.0),
        (0.7, 1.0),
        (0.775, 1 / (1 + exp(-2.5))),  # norm = 0.25 - 0.5
        (0.85, 0.5),  # half way: norm = 0
        (0.925, 1 / (1 + exp(2.5))),
        (1.0, 1 / (1 + exp(5))),
    ],
)
def test_confident_chunks_stay(c: float, expected: float) -> None:
    assert p_confidence(c, c_th=0.7, k=10) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("i", "expected"),
    [
        (0.0, 0.0),
        (0.2, 0.0),
        (0.25, 1 / (1 + exp(2.5))),  # norm = 0.25 - 0.5, theta = -10
        (0.3, 0.5),
        (0.35, 1 / (1 + exp(-2.5))),
        (0.4, 1 / (1 + exp(-5))),
        (0.41, 1.0),
    ],
)
def test_important_chunks_go(i: float, expected: float) -> None:
    assert p_importance(i, i_th=0.4, theta=-10) == pytest.approx(expected)


def test_both_curves_are_monotone_and_jump_by_less_than_a_hundredth() -> None:
    """The printed sigmoids end at 1 / (1 + e^-5): the tiers meet up to 0.0067."""
    grid = [i / 2000 for i in range(2001)]
    falling = [p_confidence(x, 0.7, 10) for x in grid]
    rising = [p_importance(x, 0.4, -10) for x in grid]
    assert falling == sorted(falling, reverse=True)
    assert rising == sorted(rising)
    for curve in (falling, rising):
        assert max(abs(b - a) for a, b in pairwise(curve)) < 0.02


@pytest.mark.parametrize("c", [0.0, 0.5, 1.0])
def test_a_cutoff_of_one_filters_nothing(c: float) -> None:
    assert p_confidence(c, c_th=1.0, k=10) == 1.0


# The budget.


@pytest.mark.parametrize("calibration", ["share", "percentile"])
def test_a_budget_of_nothing_sends_nothing(calibration: Any) -> None:
    profiled = uniform()
    offload = ConfidenceImportance(0.0, profiled, calibration)
    assert offload.i_th == INF
    assert share_sent(offload, profiled, draws=2) == 0


def test_a_budget_of_all_sends_all_that_the_confidence_filter_lets_through() -> None:
    profiled = uniform()
    offload = ConfidenceImportance(1.0, profiled)
    unsure = sum(p_confidence(c, 0.7, 10) for c in profiled.confidence) / 400
    assert share_sent(offload, profiled) == pytest.approx(unsure, abs=0.02)
    assert all(offload.ask(drafted(0.5, i, f"s{i}")) for i in (1e-6, 0.5, 1.0))


@pytest.mark.parametrize("budget", [0.05, 0.1, 0.2, 0.4, 0.6])
def test_the_share_is_the_budget(budget: float) -> None:
    profiled = uniform()
    assert share_sent(ConfidenceImportance(budget, profiled), profiled) == pytest.approx(budget, abs=0.02)


def test_more_budget_lowers_the_cutoff() -> None:
    profiled = uniform()
    cutoffs = [ConfidenceImportance(b, profiled).i_th for b in (0.1, 0.2, 0.4, 0.8)]
    assert cutoffs == sorted(cutoffs, reverse=True)
    sent = [share_sent(ConfidenceImportance(b, profiled), profiled, 5) for b in (0.0, 0.1, 0.2, 0.4, 0.8)]
    assert sent == sorted(sent)


@pytest.mark.parametrize(("budget", "i_th"), [(0.2, 0.8), (0.5, 0.5), (0.9, 0.1), (1.0, 0.1)])
def test_the_papers_rule_takes_a_percentile_of_importance(budget: float, i_th: float) -> None:
    """Above i_th lies the budget's share of ten chunks with importance 0.1, 0.2, ... 1.0."""
    profiled = thresholds([0.5] * 10, [i / 10 for i in range(1, 11)])
    assert ConfidenceImportance(budget, profiled, "percentile").i_th == i_th


def test_without_profiled_chunks_nothing_breaks() -> None:
    for calibration in ("share", "percentile"):
        assert ConfidenceImportance(0.5, thresholds([], []), calibration).i_th < INF  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [-0.1, 1.1])
def test_a_budget_is_a_share(budget: float) -> None:
    with pytest.raises(ValueError, match=r"policy.offload.budget is -?\d.1; it is a share of draft chunks: 0 to 1"):
        ConfidenceImportance(budget, uniform())


def test_a_plan_is_made_before_the_thresholds_exist() -> None:
    pending: Any = object()
    assert ConfidenceImportance(0.5, pending).i_th == INF


# The others.


def test_the_plain_choices() -> None:
    s = drafted(0.5, 0.5)
    assert (Always().ask(s), Never().ask(s), Handover().ask(s)) == (1, 0, 20)
    assert (Always().reach, Never().reach, Handover().reach) == ("all", "none", "handover")


def test_a_decision_is_the_same_when_it_is_asked_again() -> None:
    offload = ConfidenceImportance(0.3, uniform())
    for j in range(50):
        s = drafted(0.8, 0.5, f"s{j}")
        assert offload.ask(s) == offload.ask(s)
