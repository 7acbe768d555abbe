"""Every selector at its bounds: a budget of 1 sends all drafts, 0 none, and a greater one what a smaller one sends."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.session import Session
from serving.learned.thresholds import Thresholds
from serving.messages import GenerationRequest
from serving.policy.slots.importance_offload import ConfidenceOffload, ImportanceOffload, SyneraOffload
from serving.policy.slots.offload import Offload, RandomOffload
from serving.policy.slots.uncertainty_offload import EdgeFMOffload, HybridOffload

SCORE = st.floats(0.0, 1.0, allow_subnormal=False)
DRAFT = st.tuples(SCORE, SCORE)
"""Mean confidence, and importance, which readings of later rows may put at 0."""

Selector = Callable[[float, Thresholds], Offload]
SELECTORS: dict[str, Selector] = {
    "synera": SyneraOffload,
    "importance": ImportanceOffload,
    "importance, percentile": lambda budget, profiled: ImportanceOffload(budget, profiled, "percentile"),
    "confidence": lambda budget, profiled: ConfidenceOffload(profiled, budget),
    "hybrid": HybridOffload,
    "edgefm": EdgeFMOffload,
    "random": lambda budget, _: RandomOffload(budget),
}
PERCENTILE: Selector = lambda budget, profiled: SyneraOffload(budget, profiled, "percentile")  # noqa: E731
"""Its confidence filter holds at every budget, so that a budget of 1 is that of the drafts that pass it."""

BOTH_WAYS = [*SELECTORS.values(), PERCENTILE]
NAMES = [*SELECTORS, "synera, percentile"]


def profile(drafts: list[tuple[float, float]]) -> Thresholds:
    """Thresholds from these drafts, each the first of its answer."""
    confidence, importance = (tuple(values) for values in zip(*drafts, strict=True))
    return Thresholds(0.7, 0.7, confidence, importance, {}, tuple(1 / max(c, 1e-12) for c in confidence))


def drafted(draft: tuple[float, float], name: str) -> Session:
    s = Session(GenerationRequest(name, (1, 2, 3), 20), 0)
    s.draft, s.scores = [1, 2], {"confidence": [draft[0]] * 2, "importance": [draft[1]] * 2}
    return s


def sent(offload: Offload, drafts: list[tuple[float, float]]) -> list[bool]:
    return [bool(offload.tokens_to_offload(drafted(draft, f"s{i}"))) for i, draft in enumerate(drafts)]


PROFILED = st.lists(DRAFT, min_size=1, max_size=30)
SERVED = st.lists(DRAFT | st.sampled_from([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)]), min_size=1, max_size=30)


@pytest.mark.parametrize("select", SELECTORS.values(), ids=SELECTORS)
@given(profiled=PROFILED, served=SERVED)
@settings(deadline=None, max_examples=50)
def test_a_budget_of_1_sends_every_draft_also_those_beyond_the_profile(
    select: Selector, profiled: list[tuple[float, float]], served: list[tuple[float, float]]
) -> None:
    assert all(sent(select(1.0, profile(profiled)), [*profiled, *served]))


@pytest.mark.parametrize("select", SELECTORS.values(), ids=SELECTORS)
def test_a_budget_of_1_needs_no_profiled_draft(select: Selector) -> None:
    assert all(sent(select(1.0, Thresholds(0.7, 0.7, (), (), {})), [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)]))


@given(profiled=PROFILED, served=SERVED)
@settings(deadline=None, max_examples=50)
def test_by_the_papers_rule_a_budget_of_1_sends_every_draft_up_to_the_confidence_threshold(
    profiled: list[tuple[float, float]], served: list[tuple[float, float]]
) -> None:
    drafts = [*profiled, *served]
    found = sent(PERCENTILE(1.0, profile(profiled)), drafts)
    assert all(each for each, (confidence, _) in zip(found, drafts, strict=True) if confidence <= 0.7)


@pytest.mark.parametrize("select", BOTH_WAYS, ids=NAMES)
@given(profiled=PROFILED, served=SERVED)
@settings(deadline=None, max_examples=50)
def test_a_budget_of_0_sends_no_draft(
    select: Selector, profiled: list[tuple[float, float]], served: list[tuple[float, float]]
) -> None:
    assert not any(sent(select(0.0, profile(profiled)), [*profiled, *served]))


@pytest.mark.parametrize("select", BOTH_WAYS, ids=NAMES)
@given(profiled=PROFILED, served=SERVED, budgets=st.lists(SCORE, min_size=2, max_size=5))
@settings(deadline=None, max_examples=50)
def test_a_greater_budget_sends_what_a_smaller_one_sends_and_more(
    select: Selector, profiled: list[tuple[float, float]], served: list[tuple[float, float]], budgets: list[float]
) -> None:
    found = [sent(select(budget, profile(profiled)), [*profiled, *served]) for budget in sorted([0.0, *budgets, 1.0])]
    for smaller, greater in pairwise(found):
        assert all(after for before, after in zip(smaller, greater, strict=True) if before)
