"""Synera's selection: its two probabilities by hand, and the budget of each of its three ways."""

from itertools import pairwise
from math import exp
from typing import Any

import pytest

from serving.core.keyed_random import key, uniform
from serving.core.session import Session
from serving.learned.thresholds import Thresholds
from serving.messages import INF, GenerationRequest
from serving.policy.slots.importance_offload import (
    ConfidenceOffload,
    ImportanceOffload,
    SyneraOffload,
    p_confidence,
    p_importance,
    solve_threshold,
)
from serving.policy.slots.offload import Offload


def thresholds(confidence: list[float], importance: list[float], c_th: float = 0.7) -> Thresholds:
    return Thresholds(c_th, 0.7, tuple(confidence), tuple(importance), {})


def evenly_spread(n: int = 400, c_th: float = 0.7) -> Thresholds:
    """Chunks whose two scores are spread evenly and independently."""
    stream = key(0, "chunks")
    scores = [[uniform(stream, i, name) for i in range(n)] for name in ("confidence", "importance")]
    return thresholds(*scores, c_th=c_th)


def drafted(confidence: float, importance: float, name: str = "s") -> Session:
    s = Session(GenerationRequest(name, (1, 2, 3), 20), 0)
    s.draft, s.scores = [1, 2], {"confidence": [confidence, confidence], "importance": [importance, importance]}
    return s


def test_the_reading_of_importance_is_chosen_or_profiled() -> None:
    readings = {"importance_mean": (0.9, 0.1, 0.5, 0.3)}
    profiled = Thresholds(
        0.7, 0.7, (0.5,) * 4, (0.1, 0.2, 0.3, 0.4), {}, importance_readings=readings,
        importance_auc={"importance": 0.4, "importance_mean": 0.6},
    )  # fmt: skip
    best, printed = (
        ImportanceOffload(0.25, profiled, "percentile"),
        ImportanceOffload(0.25, profiled, "percentile", importance="importance"),
    )
    assert (best.score, best.i_th) == ("importance_mean", 0.5)
    assert (printed.score, printed.i_th) == ("importance", 0.3)
    assert SyneraOffload(0.25, profiled).requested_scores == ("confidence", "importance_mean")
    session = drafted(0.5, 0.6)
    session.scores["importance_mean"] = [0.2, 0.2]
    assert printed.tokens_to_offload(session) == 1
    assert best.tokens_to_offload(session) == 0
    with pytest.raises(ValueError, match=r"policy.offload.importance is 'sum'; it is profiled, or one of importance, "):
        ImportanceOffload(0.25, profiled, importance="sum")


def share_sent(offload: Offload, profiled: Thresholds, draws: int = 20) -> float:
    """How often chunks like the profiled ones are really sent."""
    chunks = list(zip(profiled.confidence, profiled.importance, strict=True))
    sent = [
        offload.tokens_to_offload(drafted(c, i, f"s{n} {j}")) for j, (c, i) in enumerate(chunks) for n in range(draws)
    ]
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
def test_confident_drafts_are_kept(c: float, expected: float) -> None:
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
def test_important_drafts_are_offloaded(i: float, expected: float) -> None:
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
def test_a_budget_of_0_offloads_nothing(calibration: Any) -> None:
    profiled = evenly_spread()
    offload = SyneraOffload(0.0, profiled, calibration)
    assert offload.i_th == INF
    assert share_sent(offload, profiled, draws=2) == 0


def test_a_budget_of_1_offloads_everything() -> None:
    profiled = evenly_spread()
    offload = SyneraOffload(1.0, profiled)
    assert share_sent(offload, profiled) == 1.0
    assert (offload.c_th, offload.i_th) == (1.0, -INF)


def test_the_papers_rule_sends_no_more_than_the_confidence_filter_lets_through() -> None:
    profiled = evenly_spread()
    unsure = sum(p_confidence(c, 0.7, 10) for c in profiled.confidence) / 400
    offload = SyneraOffload(1.0, profiled, "percentile")
    assert (offload.c_th, offload.i_th) == (0.7, -INF)
    assert share_sent(offload, profiled) == pytest.approx(unsure, abs=0.02)
    assert all(offload.tokens_to_offload(drafted(0.7, i, f"s{j}")) for j in range(50) for i in (0.0, 0.5))


@pytest.mark.parametrize(("budget", "raised"), [(0.1, False), (0.3, False), (0.7, True), (0.9, True)])
def test_the_confidence_cutoff_is_raised_only_if_the_budget_needs_it(budget: float, raised: bool) -> None:
    """A cut-off of 0.3 lets 0.3 and a share of the rest through: 0.63 of the chunks."""
    profiled = evenly_spread(c_th=0.3)
    offload = SyneraOffload(budget, profiled)
    unsure = sum(p_confidence(c, 0.3, 10) for c in profiled.confidence) / 400
    assert raised is (budget > unsure) is (offload.c_th > 0.3)
    assert share_sent(offload, profiled) == pytest.approx(budget, abs=0.02)


@pytest.mark.parametrize("budget", [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95])
def test_the_share_is_the_budget(budget: float) -> None:
    profiled = evenly_spread()
    assert share_sent(SyneraOffload(budget, profiled), profiled) == pytest.approx(budget, abs=0.02)


def test_more_budget_lowers_the_cutoff() -> None:
    profiled = evenly_spread()
    cutoffs = [SyneraOffload(b, profiled).i_th for b in (0.1, 0.2, 0.4, 0.8)]
    assert cutoffs == sorted(cutoffs, reverse=True)
    sent = [share_sent(SyneraOffload(b, profiled), profiled, 5) for b in (0.0, 0.1, 0.2, 0.4, 0.8)]
    assert sent == sorted(sent)


@pytest.mark.parametrize(("budget", "i_th"), [(0.2, 0.8), (0.5, 0.5), (0.9, 0.1), (1.0, -INF)])
def test_the_papers_rule_takes_a_percentile_of_importance(budget: float, i_th: float) -> None:
    """Above i_th lies the budget's share of ten chunks with importance 0.1, 0.2, ... 1.0."""
    profiled = thresholds([0.5] * 10, [i / 10 for i in range(1, 11)])
    assert SyneraOffload(budget, profiled, "percentile").i_th == i_th
    assert sum(i > i_th for i in profiled.importance) == round(10 * budget)


def test_offloading_works_without_profiled_chunks() -> None:
    for calibration in ("share", "percentile"):
        assert SyneraOffload(0.5, thresholds([], []), calibration).i_th < INF  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [-0.1, 1.1])
def test_a_budget_outside_0_to_1_is_refused(budget: float) -> None:
    with pytest.raises(ValueError, match=r"policy.offload.budget is -?\d.1; it is a share of draft chunks: 0 to 1"):
        SyneraOffload(budget, evenly_spread())


def test_a_plan_is_made_before_the_thresholds_exist() -> None:
    pending: Any = object()
    assert SyneraOffload(0.5, pending).i_th == INF


# Importance alone.


@pytest.mark.parametrize("budget", [0.0, 0.05, 0.2, 0.6, 1.0])
def test_by_importance_alone_the_share_is_the_budget_up_to_all(budget: float) -> None:
    profiled = evenly_spread()
    assert share_sent(ImportanceOffload(budget, profiled), profiled) == pytest.approx(budget, abs=0.02)


def test_by_importance_alone_confidence_does_not_matter() -> None:
    offload = ImportanceOffload(0.3, evenly_spread())
    assert offload.requested_scores == ("importance",)
    for j in range(100):
        decisions = {offload.tokens_to_offload(drafted(c, j / 100, f"s{j}")) for c in (0.0, 0.5, 1.0)}
        assert len(decisions) == 1


def test_by_importance_alone_the_papers_rule_is_the_same_percentile() -> None:
    profiled = thresholds([0.5] * 10, [i / 10 for i in range(1, 11)])
    assert ImportanceOffload(0.2, profiled, "percentile").i_th == 0.8


def test_confidence_first_offloads_less_confident_drafts_than_importance_alone() -> None:
    profiled = evenly_spread()
    both, alone = SyneraOffload(0.2, profiled), ImportanceOffload(0.2, profiled)
    assert both.i_th < alone.i_th
    sure = [drafted(1.0, 1.1, f"s{j}") for j in range(300)]
    assert sum(map(alone.tokens_to_offload, sure)) == 300
    assert sum(map(both.tokens_to_offload, sure)) < 20


# Confidence alone.


def test_by_confidence_alone_the_profiled_cutoff_has_no_budget() -> None:
    profiled = evenly_spread(c_th=0.4)
    offload = ConfidenceOffload(profiled)
    assert (offload.c_th, offload.requested_scores) == (0.4, ("confidence",))
    expected = sum(p_confidence(c, 0.4, 10) for c in profiled.confidence) / 400
    assert share_sent(offload, profiled) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("budget", [0.2, 0.4, 0.6, 1.0])
def test_by_confidence_alone_the_share_is_the_budget(budget: float) -> None:
    profiled = evenly_spread()
    assert share_sent(ConfidenceOffload(profiled, budget), profiled) == pytest.approx(budget, abs=0.02)


@pytest.mark.parametrize("budget", [0.0, 0.02, 0.05])
def test_by_confidence_alone_a_small_budget_is_kept_too(budget: float) -> None:
    """However unsure the chunks are: with a cut-off of -1, P_conf sends more than a quarter of those below 0.25."""
    profiled = thresholds([i / 400 for i in range(100)], [0.5] * 100)
    assert share_sent(ConfidenceOffload(profiled, budget), profiled) <= budget + 0.01


def test_by_confidence_alone_more_budget_raises_the_cutoff() -> None:
    profiled = evenly_spread()
    cutoffs = [ConfidenceOffload(profiled, b).c_th for b in (0.2, 0.4, 0.8, 1.0)]
    assert cutoffs == sorted(cutoffs)
    offload = ConfidenceOffload(profiled, 0.3)
    assert len({offload.tokens_to_offload(drafted(0.3, i / 9, "s")) for i in range(10)}) == 1


# All of them.


@pytest.mark.parametrize(("share", "rising"), [(lambda x: x * x, True), (lambda x: 1 - x * x, False)])
@pytest.mark.parametrize("budget", [0.0, 0.25, 0.5, 1.0])
def test_the_threshold_is_the_nearest_below_the_budget(share: Any, rising: bool, budget: float) -> None:
    at = solve_threshold(share, budget, 0.0, 1.0)
    assert at == pytest.approx((budget if rising else 1 - budget) ** 0.5, abs=1e-6)
    assert share(at) <= budget
    assert (at == float(rising)) is (budget == 1.0)


@pytest.mark.parametrize("budget", [-0.1, 1.1])
def test_every_offload_refuses_a_budget_outside_0_to_1(budget: float) -> None:
    builds = (lambda: ImportanceOffload(budget, evenly_spread()), lambda: ConfidenceOffload(evenly_spread(), budget))
    for build in builds:
        with pytest.raises(ValueError, match=r"policy.offload.budget is -?\d.1; it is a share of draft chunks: 0 to 1"):
            build()


def test_every_plan_is_made_before_the_thresholds_exist() -> None:
    pending: Any = object()
    assert (ImportanceOffload(0.5, pending).i_th, ConfidenceOffload(pending, 0.5).c_th) == (INF, 0.0)


def test_an_offload_decision_is_repeatable() -> None:
    for offload in (
        SyneraOffload(0.3, evenly_spread()),
        ImportanceOffload(0.3, evenly_spread()),
        ConfidenceOffload(evenly_spread()),
    ):
        for j in range(50):
            s = drafted(0.8, 0.5, f"s{j}")
            assert offload.tokens_to_offload(s) == offload.tokens_to_offload(s)


def test_a_steep_curve_is_a_threshold() -> None:
    assert [p_confidence(c, 0.3, 1e6) for c in (0.2, 0.64, 0.66, 1.0)] == pytest.approx([1, 1, 0, 0])
    assert [p_importance(i, 0.4, -1e6) for i in (0.1, 0.29, 0.31, 0.5)] == pytest.approx([0, 0, 1, 1])
