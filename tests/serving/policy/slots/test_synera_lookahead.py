"""Synera's lookahead while the cloud verifies (section 4.4): position and token by hand."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.session import Session
from serving.learned.thresholds import Thresholds
from serving.messages import DraftOutcome, GenerationRequest
from serving.policy.slots.lookahead import NoLookahead, SyneraLookahead, rejection_weights, sample_index

SHARE = st.floats(0.0, 1.0)
DRAWS = 4000


def lookahead(alpha: float = 0.5, **options: Any) -> SyneraLookahead:
    return SyneraLookahead(Thresholds(0.7, alpha, (), (), {}), **options)


def in_flight(
    confidence: tuple[float, ...], name: str = "s", tops: tuple[tuple[int, ...], ...] | None = None
) -> Session:
    """A session that has sent its draft 10, 11, 12 ..., whose other candidates are 20, 21 ... and 30, 31 ..."""
    s = Session(GenerationRequest(name, (1, 2, 3), 20), 0)
    tokens = tuple(range(10, 10 + len(confidence)))
    others = tuple((t, t + 10, t + 20) for t in tokens)
    s.add_draft(DraftOutcome(tokens, {"confidence": confidence}, others if tops is None else tops, False, 5))
    s.start_verification(True, "greedy")
    return s


def normalised(weights: tuple[float, ...]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


# The position.


@given(st.lists(SHARE, min_size=1, max_size=8), SHARE, st.booleans())
@settings(deadline=None)
def test_every_position_has_a_weight_that_is_a_probability(confidence: list[float], alpha: float, full: bool) -> None:
    weights = rejection_weights(confidence, alpha, full)
    assert len(weights) == len(confidence) + full
    assert all(0.0 <= weight <= 1.0 for weight in weights)
    assert sum(weights) <= 1.0 + 1e-12


def test_full_acceptance_is_a_position_of_its_own() -> None:
    """gamma = 4, alpha = 0.5, all confidences 0.8: 0.5 x 0.5^t x 0.2, and 0.5^4 x 0.8 for all four."""
    assert rejection_weights([0.8] * 4, 0.5, allow_full_acceptance=True) == pytest.approx(
        (0.1, 0.05, 0.025, 0.0125, 0.05)
    )


def test_with_even_confidence_the_base_is_a_proper_capped_geometric_distribution() -> None:
    """A confidence of one half scales all five places alike: what remains is 1/2, 1/4, 1/8, 1/16 and 1/16."""
    assert normalised(rejection_weights([0.5] * 4, 0.5, allow_full_acceptance=True)) == pytest.approx(
        [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16]
    )
    base = [weight / 0.5 for weight in rejection_weights([0.5] * 4, 0.7, allow_full_acceptance=True)]
    assert base == pytest.approx([0.3, 0.21, 0.147, 0.1029, 0.2401])
    assert sum(base) == pytest.approx(1.0)


def test_without_full_acceptance_the_positions_are_the_printed_ones() -> None:
    """0 to gamma - 1, with the omitted rejection at gamma - 1 in its place: normalised over them."""
    assert rejection_weights([0.8] * 4, 0.5, allow_full_acceptance=False) == pytest.approx((0.1, 0.05, 0.025, 0.0125))
    assert normalised(rejection_weights([0.3] * 4, 0.5, allow_full_acceptance=False)) == pytest.approx(
        [8 / 15, 4 / 15, 2 / 15, 1 / 15]
    )


def test_the_printed_weight_at_the_last_position_is_alpha_to_the_gamma() -> None:
    """gamma = 4, alpha = 0.9, even confidences: 0.1 x 0.9^t, and 0.9^4 where a rejection has 0.0729."""
    rejection, published = (
        normalised(rejection_weights([0.5] * 4, 0.9, False, weight)) for weight in ("rejection", "published")
    )
    assert rejection == pytest.approx([weight / 0.3439 for weight in (0.1, 0.09, 0.081, 0.0729)])
    assert published == pytest.approx([weight / 0.9271 for weight in (0.1, 0.09, 0.081, 0.6561)])
    assert rejection_weights([0.2, 0.6], 0.5, False, "published") == pytest.approx((0.5 * 0.8, 0.25 * 0.4))


def test_the_printed_weight_has_no_place_beside_full_acceptance() -> None:
    choice = lookahead(1.0, allow_full_acceptance=False, last_weight="published")
    assert choice.assumed_verdicts(in_flight((0.5, 0.5)))[0][0] == 1
    with pytest.raises(ValueError, match=r"last_weight=published .* needs .*allow_full_acceptance=false"):
        lookahead(last_weight="published")


def test_low_confidence_moves_the_assumed_rejection_to_its_token() -> None:
    """0.5 x (0.01, 0.5 x 0.01, 0.25 x 0.9, 0.125 x 0.01), and 0.0625 x the mean of 0.7675."""
    weights = rejection_weights([0.99, 0.99, 0.1, 0.99], 0.5, allow_full_acceptance=True)
    assert weights == pytest.approx((0.005, 0.0025, 0.1125, 0.000625, 0.0625 * 0.7675))
    assert max(range(5), key=weights.__getitem__) == 2


@pytest.mark.parametrize(
    ("alpha", "confidence", "at"),
    [(1.0, [0.5] * 4, 4), (0.0, [0.5] * 4, 0), (1.0, [0.0] * 4, 4), (0.5, [1.0] * 4, 4), (0.0, [1.0] * 4, 4)],
)
def test_rejection_weights_at_alpha_0_and_1(alpha: float, confidence: list[float], at: int) -> None:
    weights = rejection_weights(confidence, alpha, allow_full_acceptance=True)
    assert {sample_index(weights, draw) for draw in (0.0, 0.3, 0.999999)} == {at}


@given(st.lists(SHARE, min_size=1, max_size=8), st.floats(0.0, 1.0, exclude_max=True))
@settings(deadline=None)
def test_a_position_of_weight_zero_is_never_drawn(weights: list[float], draw: float) -> None:
    at = sample_index(weights, draw)
    if sum(weights) > 0:
        assert weights[at] > 0
    else:
        assert at == len(weights) - 1


@pytest.mark.parametrize("weights", [(0.1, 0.05, 0.025, 0.0125, 0.05), (0.0, 3.0, 0.0, 1.0), (1.0,)])
def test_positions_are_drawn_in_proportion_to_their_weights(weights: tuple[float, ...]) -> None:
    found = Counter(sample_index(weights, (i + 0.5) / DRAWS) for i in range(DRAWS))
    for at, share in enumerate(normalised(weights)):
        assert found[at] / DRAWS == pytest.approx(share, abs=2 / DRAWS)


@pytest.mark.parametrize("full", [True, False])
def test_assumed_verdicts_follow_the_distribution(full: bool) -> None:
    choice, confidence = lookahead(0.6, allow_full_acceptance=full), (0.9, 0.4, 0.7)
    found = Counter(choice.assumed_verdicts(in_flight(confidence, f"s{i}"))[0][0] for i in range(DRAWS))
    for at, share in enumerate(normalised(rejection_weights(confidence, 0.6, full))):
        assert found[at] / DRAWS == pytest.approx(share, abs=0.03)


# The token.


def test_the_replacement_is_one_of_the_other_two_and_never_the_rejected_one() -> None:
    found = Counter(lookahead(0.0).assumed_verdicts(in_flight((0.5,), f"s{i}"))[0] for i in range(DRAWS))
    assert set(found) == {(0, 20), (0, 30)}
    assert found[0, 20] / DRAWS == pytest.approx(0.5, abs=0.03)


def test_the_likeliest_replacement_is_the_second_of_three_or_the_first_where_another_was_drawn() -> None:
    choice = lookahead(0.0, replacement="likeliest")
    assert choice.assumed_verdicts(in_flight((0.5,))) == ((0, 20),)
    assert choice.assumed_verdicts(in_flight((0.5,), tops=((8, 10, 9),))) == ((0, 8),)


def test_a_drawn_token_outside_the_three_leaves_all_three() -> None:
    s = [in_flight((0.5,), f"s{i}", ((7, 8, 9),)) for i in range(DRAWS)]
    found = Counter(lookahead(0.0).assumed_verdicts(one)[0][1] for one in s)
    assert set(found) == {7, 8, 9}
    assert all(n / DRAWS == pytest.approx(1 / 3, abs=0.03) for n in found.values())


@pytest.mark.parametrize("replacement", ["sampled", "likeliest"])
def test_without_another_candidate_no_verdict_is_assumed(replacement: Any) -> None:
    assert lookahead(0.0, replacement=replacement).assumed_verdicts(in_flight((0.5,), tops=((10,),))) == ()


def test_full_acceptance_assumes_the_draft_models_own_token() -> None:
    assert lookahead(1.0).assumed_verdicts(in_flight((0.5, 0.5))) == ((2, None),)
    assert lookahead(1.0, allow_full_acceptance=False).assumed_verdicts(in_flight((1.0, 1.0)))[0][0] == 1


def test_a_request_without_drafts_has_no_assumed_verdict() -> None:
    s = Session(GenerationRequest("s", (1, 2, 3), 20), 0)
    s.start_verification(True, "greedy")
    assert lookahead().assumed_verdicts(s) == NoLookahead().assumed_verdicts(s) == ()


def test_an_assumed_verdict_is_repeatable() -> None:
    for i in range(50):
        s = in_flight((0.6, 0.6, 0.6), f"s{i}")
        assert lookahead().assumed_verdicts(s) == lookahead().assumed_verdicts(s)


def test_position_and_replacement_are_drawn_independently() -> None:
    """One random number for both would tie the replacement to the position."""
    found = {lookahead(0.5).assumed_verdicts(in_flight((0.1,) * 3, f"s{i}"))[0] for i in range(400)}
    assert found == {(3, None), *((at, 10 + at + more) for at in range(3) for more in (10, 20))}


def test_at_least_one_token_is_drafted_ahead() -> None:
    with pytest.raises(ValueError, match=r"policy.lookahead.max_steps is 0; draft at least 1 token ahead"):
        lookahead(max_steps=0)
    assert (NoLookahead().max_steps, lookahead().max_steps, lookahead().requested_scores) == (0, 3, ("confidence",))
