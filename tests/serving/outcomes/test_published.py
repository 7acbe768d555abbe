"""A published drafter: its tokens a round by task, and the acceptance that gives as many."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.messages import DraftStopRule, TreeRule
from serving.outcomes import fit, fitted, published, shifted
from serving.outcomes.acceptance_draws import MatchProbabilities
from serving.outcomes.fitted import RANK_COLUMN, FittedAcceptance
from serving.outcomes.published import PublishedAcceptance, find_acceptance, mean_tokens_per_round
from tests.serving.outcomes.made_up_trace import trace

CHAIN = DraftStopRule(4, tree=TreeRule(4, 1))
TREE = DraftStopRule(12, tree=TreeRule(4, 3))


def table(**changes: object) -> PublishedAcceptance:
    known = {"source": "a table", "nodes": 4, "depth": 4, "branching": 1, "tokens_per_round": 2.0, "speedup": 1.5}
    return PublishedAcceptance(**known | {"speedups": {"easy": 2.1, "hard": 0.9}} | changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model() -> FittedAcceptance:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "SAMPLED_POSITIONS", 100)
        return fit.fit_acceptance(trace(), 0)


def test_tokens_a_round_are_in_proportion_to_speedups() -> None:
    assert table().tokens_on("easy") == pytest.approx(2.8)
    assert table().tokens_on("hard") == pytest.approx(1.2)
    with pytest.raises(ValueError, match="'sums'; the table has easy, hard"):
        table().tokens_on("sums")


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"tokens_per_round": 4.0}, "easy has 5.60 tokens a round; drafts of 4 levels give"),
        ({"tokens_per_round": 1.5}, "hard has 0.90 tokens a round"),
        ({"branching": 0}, "branching is 0"),
    ],
)
def test_tokens_that_such_drafts_cannot_give_are_refused(wrong: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        table(**wrong)


@pytest.mark.parametrize("p", [0.3, 0.6, 0.9])
def test_a_chain_of_independent_drafts_gives_the_geometric_mean(model: FittedAcceptance, p: float) -> None:
    """Leviathan et al. 2023, Eq. 1: (1 - p^5) / (1 - p) tokens a round of four drafts."""
    alike = replace(model, probabilities=MatchProbabilities(p, p, p))
    found = mean_tokens_per_round(alike, CHAIN, 20_000)
    assert found == pytest.approx((1 - p**5) / (1 - p), rel=0.02)


@pytest.mark.parametrize(("rule", "wanted"), [(CHAIN, 2.2), (CHAIN, 3.0), (TREE, 3.0)])
def test_the_found_acceptance_gives_the_wanted_tokens(
    model: FittedAcceptance, rule: DraftStopRule, wanted: float
) -> None:
    made = shifted.shift(model, find_acceptance(model, rule, wanted, 1000))
    assert mean_tokens_per_round(made, rule, 4000) == pytest.approx(wanted, rel=0.06)


def test_a_tree_needs_less_acceptance_than_a_chain_of_as_many_levels(model: FittedAcceptance) -> None:
    assert find_acceptance(model, TREE, 3.0, 300) < find_acceptance(model, CHAIN, 3.0, 300)


def test_tokens_out_of_reach_are_refused(model: FittedAcceptance) -> None:
    """Where every draft has one confidence, no weight of the rows makes more of them right."""
    one = (model.pools.rows[0][0],)
    alike = replace(model, pools=replace(model.pools, rows=(one,) * len(model.pools.rows)))
    with pytest.raises(ValueError, match=r"wants 4.50 tokens a round, and the recorded drafts allow \d"):
        find_acceptance(alike, CHAIN, 4.5, 100)


def test_the_report_says_what_was_published(model: FittedAcceptance, tmp_path: Path) -> None:
    fitted.save(tmp_path, model)
    made = published.load(tmp_path, table(), "easy")
    assert "for 2.80 tokens a round on easy, a table" in made.described
    assert published.planned_load(table(), "easy").draws_trees
    with pytest.raises(ValueError, match="the table has"):
        published.planned_load(table(), "sums")


def test_a_fourth_child_is_never_right(model: FittedAcceptance) -> None:
    """Where the target's token is none of the three recorded candidates, no child has it, however many there are."""
    unranked = tuple(
        tuple((*row[:RANK_COLUMN], 3, *row[RANK_COLUMN + 1 :]) for row in kind) for kind in model.pools.rows
    )
    never = replace(model, pools=replace(model.pools, rows=unranked), probabilities=MatchProbabilities(0.0, 0.0, 0.0))
    assert mean_tokens_per_round(never, DraftStopRule(30, tree=TreeRule(3, 6)), 200) == 1.0
