"""A fitted model of acceptance that is shifted: its acceptance, its calibration, and its trees."""

from collections import defaultdict
from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest

from serving.core.decoding import Decoding
from serving.core.draft_tree import accept_greedily, first_path
from serving.messages import DraftOutcome, DraftStopRule, DraftWork, TreeRule
from serving.outcomes import fit, fitted, shifted
from serving.outcomes.acceptance_draws import AcceptanceDraws, MatchProbabilities
from serving.outcomes.fitted import FittedAcceptance, ScorePools
from serving.outcomes.sampled_engine import SampledEngine
from serving.workload.prompt import Prompt
from serving.workload.workload import WorkloadRequest
from tests.serving.outcomes.made_up_trace import trace
from tests.support.fake_setup import setup

POSITIONS = 40_000
BINS = 8


@pytest.fixture(scope="module")
def model() -> FittedAcceptance:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "SAMPLED_POSITIONS", 100)
        return fit.fit_acceptance(trace(), 0)


def drawn(model: FittedAcceptance, n: int) -> list[tuple[float, bool]]:
    """Confidence, and True if the draft is right, of `n` positions."""
    draws, thresholds = AcceptanceDraws(0, "session", 0), model.probabilities.thresholds
    right = [draws.num_accepted(at, 1, thresholds) == 1 for at in range(n)]
    return [(model.pools.score(draws, at, 0, int(one), "confidence"), one) for at, one in enumerate(right)]


def reliability(found: list[tuple[float, bool]], bounds: list[float]) -> dict[int, tuple[float, int]]:
    """By the number of bounds below the confidence, the share that is right, of how many."""
    sums: dict[int, list[bool]] = defaultdict(list)
    for confidence, right in found:
        sums[sum(bound < confidence for bound in bounds)].append(right)
    return {place: (sum(own) / len(own), len(own)) for place, own in sums.items()}


@pytest.mark.parametrize("acceptance", [0.5, 0.6, 0.8, 0.9])
def test_the_drawn_acceptance_is_the_stated_one(model: FittedAcceptance, acceptance: float) -> None:
    made = shifted.shift(model, acceptance)
    assert shifted.stationary_acceptance(made.probabilities) == pytest.approx(acceptance, abs=1e-9)
    found = [right for _, right in drawn(made, POSITIONS)]
    assert sum(found) / POSITIONS == pytest.approx(acceptance, abs=6 * sqrt(0.25 / POSITIONS))


@pytest.mark.parametrize("acceptance", [0.55, 0.85])
def test_a_confidence_says_what_it_said_before(model: FittedAcceptance, acceptance: float) -> None:
    """In each bin of confidence as large a share of the drafts is right, though other bins are full."""
    before, after = drawn(model, POSITIONS), drawn(shifted.shift(model, acceptance), POSITIONS)
    ranked = sorted(confidence for confidence, _ in before)
    bounds = [ranked[len(ranked) * i // BINS] for i in range(1, BINS)]
    known, found = reliability(before, bounds), reliability(after, bounds)
    compared = [place for place in known if place in found and min(known[place][1], found[place][1]) > 500]
    assert len(compared) >= BINS // 2
    for place in compared:
        assert found[place][0] == pytest.approx(known[place][0], abs=0.08), bounds
    unshifted = replace(model, probabilities=shifted.shift(model, acceptance).probabilities)
    wrong = reliability(drawn(unshifted, POSITIONS), bounds)
    assert max(abs(wrong[place][0] - known[place][0]) for place in compared) > 0.09  # chances alone miscalibrate


def by_hand(model: FittedAcceptance) -> FittedAcceptance:
    """One state, right drafts at the confidence 0.9 and 0.5, wrong ones at 0.5, 0.6 of all right."""
    right, wrong = ((c, *model.pools.rows[0][0][1:]) for c in (0.9, 0.5)), ((0.5, *model.pools.rows[0][0][1:]),)
    kinds = (wrong, tuple(right))
    pools = ScorePools((*kinds, *kinds, wrong), model.pools.attention, model.pools.num_whole_drafts)
    return replace(model, pools=pools, probabilities=MatchProbabilities(0.6, 0.6, 0.6))


def test_by_hand_rows_count_by_their_confidence(model: FittedAcceptance) -> None:
    made = shifted.shift(
        by_hand(model), 0.75
    )  # 0.6 (w + 1) / 2 / (0.6 (w + 1) / 2 + 0.4) = 0.75: w = 3, w the weight of 0.9
    assert made.probabilities.after_right == pytest.approx(0.75)
    assert made.pools.rows[3].count(by_hand(model).pools.rows[3][0]) / len(made.pools.rows[3]) == pytest.approx(
        0.75, abs=1e-3
    )
    assert set(made.pools.rows[2]) == set(by_hand(model).pools.rows[2])


def test_at_its_own_acceptance_nothing_changes(model: FittedAcceptance, tmp_path: Path) -> None:
    own = shifted.stationary_acceptance(model.probabilities)
    made = shifted.shift(model, own)
    assert (made.probabilities, made.pools) == (model.probabilities, model.pools)
    near = shifted.shift(model, own + 1e-7)
    for name in ("first", "after_right", "after_wrong"):
        assert getattr(near.probabilities, name) == pytest.approx(getattr(model.probabilities, name), abs=1e-6)
    fitted.save(tmp_path, model)
    assert shifted.load(tmp_path) == fitted.load(tmp_path)
    assert shifted.load(tmp_path, 0.6).described.endswith(
        "shifted to 0.6), a Markov chain of order 1 with resampled scores"
    )


def test_what_cannot_be_shifted_is_refused(model: FittedAcceptance) -> None:
    with pytest.raises(ValueError, match=r"is 1.0; it is the share of right drafts, above 0, below 1"):
        shifted.shift(model, 1.0)
    with pytest.raises(
        ValueError, match=r"is 0.4, and the recorded drafts allow 0\.429 to 1\.000"
    ):  # 0.3 / (0.3 + 0.4)
        shifted.shift(by_hand(model), 0.4)
    with pytest.raises(ValueError, match=r"is 2.0, and no heads of the target proposed trees"):
        shifted.shift_trees(model, 2.0)
    with pytest.raises(ValueError, match=r"is 3.0; the recorded trees allow more than 1 and fewer than 3 tokens"):
        shifted.shift_trees(with_trees(model), 3.0)
    with pytest.raises(ValueError, match="the target's own included: above 1"):
        shifted.planned_load(medusa_accept_length=1.0)
    with pytest.raises(ValueError, match="above 0, below 1"):
        shifted.planned_load(acceptance=3.0)


TREE = ((0,), (1,), (0, 0))


def with_trees(model: FittedAcceptance) -> FittedAcceptance:
    """Of ten trees two have no right candidate, two the second alone, six a path of two."""
    return replace(
        model, medusa_tree=TREE, pools=replace(model.pools, last_accepted_nodes=(-1, -1, 1, 1, 2, 2, 2, 2, 2, 2))
    )


@pytest.mark.parametrize("accept_length", [1.2, 1.89, 2.4, 2.9])
def test_trees_give_the_stated_tokens_a_round(model: FittedAcceptance, accept_length: float) -> None:
    made = shifted.shift_trees(with_trees(model), accept_length)
    draws = AcceptanceDraws(0, "session", 0)
    nodes = [made.pools.last_accepted_node(draws, at) for at in range(POSITIONS)]
    depths = [len(TREE[node]) if node >= 0 else 0 for node in nodes]
    assert 1 + sum(depths) / POSITIONS == pytest.approx(accept_length, abs=6 / sqrt(POSITIONS))
    none, one, two = (made.pools.last_accepted_nodes.count(node) for node in (-1, 1, 2))
    assert none * two / one**2 == pytest.approx(2 * 6 / 2**2, rel=0.02)  # exp(tilt d) leaves this ratio as it was
    assert made.probabilities == model.probabilities
    assert 0 not in made.pools.last_accepted_nodes


def test_a_trace_with_trees_is_shifted_where_both_are_stated(model: FittedAcceptance, tmp_path: Path) -> None:
    fitted.save(tmp_path, with_trees(model))
    with pytest.raises(
        ValueError, match=r"say how many tokens a round they give \(runtime.outcomes.medusa_accept_length"
    ):
        shifted.load(tmp_path, 0.6)
    made = shifted.load(tmp_path, 0.6, medusa_accept_length=1.89)
    assert shifted.stationary_acceptance(made.probabilities) == pytest.approx(0.6)
    assert "shifted to 0.6, heads' trees to 1.89 tokens a round)" in made.described


def test_a_chain_is_the_first_path_of_the_tree_under_the_same_seed(model: FittedAcceptance) -> None:
    made = shifted.shift(model, 0.7)
    asked = WorkloadRequest(0, Prompt("q", "", (), ""), 0, 0, None, 0.0, 99, 64, None)
    query = made.make_queries([asked], Decoding(), 0)[0]
    call, policy = query.request, setup("sled").policy
    engine, depths, further = made.open([query], policy, 0).device, set[int](), 0
    assert isinstance(engine, SampledEngine)
    for at in range(len(call.prompt), len(call.prompt) + 50):
        given = tuple(range(0, 4 * at, 4))
        chain = engine.execute(DraftWork(call.session, 0, given, DraftStopRule(5)))[0]
        tree = engine.execute(DraftWork(call.session, 0, given, DraftStopRule(16, tree=TreeRule(5, 4))))[0]
        assert isinstance(chain, DraftOutcome)
        assert isinstance(tree, DraftOutcome)
        path = first_path(tree.parents, len(tree.tokens))
        assert tuple(tree.tokens[node] for node in path) == chain.tokens[: len(path)]
        depths.add(len(path))
        accepted = accept_greedily(tree.tokens, tree.parents, lambda nodes, at=at: 4 * (at + len(nodes))).accepted
        right = next((i for i, token in enumerate(chain.tokens) if token % 4), len(chain.tokens))
        assert accepted >= min(right, len(path))
        further += accepted > right
    assert max(depths) == 5
    assert further > 5  # the target's token is the second candidate of every wrong draft here
