"""Shifts a fitted model of acceptance to a stated one, as if the same pair served text that is easier or harder.

A recorded row with the confidence c counts w = exp(tilt * c) times, whether its draft was right or wrong. The chance
that a draft is right, given its scores, stays what was recorded, so that confidence, and every score or predictor that
was trained on the pair, is as well calibrated as before; how often each score occurs changes. Of all weights of scores
that lead to the stated acceptance these change their distribution least (an exponential tilt: Kullback's minimum
discrimination information). By Bayes' rule the chance p of a state of the Markov chain becomes

    p' = p E[w | right] / (p E[w | right] + (1 - p) E[w | wrong])

with the means over the state's recorded rows. `tilt` is found by bisection.

Trees of Medusa heads are recorded whole. They are shifted to a stated accept length: a recorded tree with the accepted
depth d counts exp(tilt * d) times.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from math import exp
from pathlib import Path
from typing import TypeVar

from serving.core.scores import LOGIT_SCORES
from serving.outcomes import fitted
from serving.outcomes.acceptance_draws import MatchProbabilities
from serving.outcomes.fit import MAX_POOL_ROWS
from serving.outcomes.fitted import AnswerLengths, FittedAcceptance, PromptLengths
from serving.outcomes.outcomes import PlannedOutcomes

MAX_TILT = 60.0
"""Beyond it a thousandth more or less of confidence changes a row's weight by 6 %: few rows would stand for all."""
_CONFIDENCE = LOGIT_SCORES.index("confidence")
_HALVINGS = 60

T = TypeVar("T")
PoolRows = Sequence[tuple[float, ...]]


def load(
    path: Path,
    acceptance: float | None = None,
    prompt_lengths: PromptLengths | None = None,
    full_length_answers: bool = False,
    answer_lengths: AnswerLengths | None = None,
    medusa_accept_length: float | None = None,
) -> FittedAcceptance:
    """As `serving.outcomes.fitted.load`, shifted to `acceptance`; None: as it was fitted.

    `medusa_accept_length`: the tokens a round, with the target's own, that the trees of Medusa heads are shifted to.

    Raises ValueError for a value that no weight of the recorded rows or trees leads to.
    """
    model = fitted.load(path, prompt_lengths, full_length_answers, answer_lengths)
    if medusa_accept_length is not None:
        model = shift_trees(model, medusa_accept_length)
    elif acceptance is not None and model.medusa_tree:
        raise ValueError(
            "runtime.outcomes.acceptance shifts drafts of a draft model, and this trace has trees that heads of the "
            "target proposed, too; say how many tokens a round they give (runtime.outcomes.medusa_accept_length), or "
            "leave the acceptance out"
        )
    return model if acceptance is None else shift(model, acceptance)


def planned_load(
    acceptance: float | None = None, medusa_accept_length: float | None = None, **_: object
) -> PlannedOutcomes:
    """What a plan knows of the model, before it is fitted. Raises ValueError for values out of range."""
    if acceptance is not None:
        _check_share(acceptance)
    if medusa_accept_length is not None:
        _check_accept_length(medusa_accept_length)
    return PlannedOutcomes("runtime/outcomes=shifted", draws_trees=True, is_text=False)


def stationary_acceptance(probabilities: MatchProbabilities) -> float:
    """The share of right drafts in the long run of the Markov chain."""
    leave = 1 - probabilities.after_right + probabilities.after_wrong
    return probabilities.after_wrong / leave if leave else probabilities.first


def shift(model: FittedAcceptance, acceptance: float) -> FittedAcceptance:
    """The model whose share of right drafts in the long run is `acceptance`.

    Raises ValueError for an acceptance that is out of reach. Trees of the target's heads stay as they are.
    """
    _check_share(acceptance)
    if acceptance == stationary_acceptance(model.probabilities):
        return replace(model, shifted_to=acceptance)
    tilt = _find_tilt(model, acceptance)
    pools = replace(model.pools, rows=tuple(_resampled(rows, tilt) for rows in model.pools.rows))
    return replace(model, probabilities=_tilted(model, tilt), pools=pools, shifted_to=acceptance)


def shift_trees(model: FittedAcceptance, accept_length: float) -> FittedAcceptance:
    """The model whose Medusa heads' trees give `accept_length` tokens a round in the mean, the target's own included.

    Raises ValueError for a model without such trees, and for a length out of reach.
    """
    _check_accept_length(accept_length)
    nodes = model.pools.last_accepted_nodes
    if not nodes:
        raise ValueError(
            f"runtime.outcomes.medusa_accept_length is {accept_length}, and no heads of the target proposed trees in "
            "this trace; leave it out"
        )
    depths = [len(model.medusa_tree[node]) if node >= 0 else 0 for node in nodes]
    if not min(depths) < accept_length - 1 < max(depths):
        raise ValueError(
            f"runtime.outcomes.medusa_accept_length is {accept_length}; the recorded trees allow more than "
            f"{1 + min(depths)} and fewer than {1 + max(depths)} tokens a round"
        )
    tilt = _bisect(lambda tilt: _mean_depth(depths, tilt) < accept_length - 1)
    pools = replace(model.pools, last_accepted_nodes=tuple(_evenly(nodes, _depth_weights(depths, tilt))))
    return replace(model, pools=pools, trees_shifted_to=accept_length)


def _mean_depth(depths: Sequence[int], tilt: float) -> float:
    weights = _depth_weights(depths, tilt)
    return sum(depth * weight for depth, weight in zip(depths, weights, strict=True)) / sum(weights)


def _depth_weights(depths: Sequence[int], tilt: float) -> list[float]:
    """Weights relative to the greatest of them, so that none is infinite."""
    pivot = max(depths) if tilt > 0 else min(depths)
    return [exp(tilt * (depth - pivot)) for depth in depths]


def _check_accept_length(accept_length: float) -> None:
    if not accept_length > 1:
        raise ValueError(
            f"runtime.outcomes.medusa_accept_length is {accept_length}; it is the tokens a round, the target's own "
            "included: above 1"
        )


def _check_share(acceptance: float) -> None:
    if not 0 < acceptance < 1:
        raise ValueError(
            f"runtime.outcomes.acceptance is {acceptance}; it is the share of right drafts, above 0, below 1"
        )


def reachable_acceptance(model: FittedAcceptance) -> tuple[float, float]:
    """The least and the greatest acceptance that the model can be shifted to."""
    least, most = (stationary_acceptance(_tilted(model, tilt)) for tilt in (-MAX_TILT, MAX_TILT))
    return least, most


def _find_tilt(model: FittedAcceptance, acceptance: float) -> float:
    least, most = reachable_acceptance(model)
    if not least <= acceptance <= most:
        raise ValueError(
            f"runtime.outcomes.acceptance is {acceptance}, and the recorded drafts allow {least:.3f} to {most:.3f}: "
            "their confidence tells right from wrong no better; choose one between, or another pair"
        )
    return _bisect(lambda tilt: stationary_acceptance(_tilted(model, tilt)) < acceptance)


def _bisect(too_low: Callable[[float], bool]) -> float:
    """The tilt at which `too_low` turns from True to False."""
    low, high = -MAX_TILT, MAX_TILT
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_low(middle) else (low, middle)
    return (low + high) / 2


def _tilted(model: FittedAcceptance, tilt: float) -> MatchProbabilities:
    """The chances of the weighted rows; a text's first position follows no wrong draft."""
    wrong_after_wrong, right_after_wrong, wrong_after_right, right_after_right, _ = (
        _mean_weight(rows, tilt) for rows in model.pools.rows
    )
    known = model.probabilities
    return MatchProbabilities(
        _posterior(known.first, right_after_right, wrong_after_right),
        _posterior(known.after_right, right_after_right, wrong_after_right),
        _posterior(known.after_wrong, right_after_wrong, wrong_after_wrong),
    )


def _posterior(prior: float, right: float, wrong: float) -> float:
    return prior * right / (prior * right + (1 - prior) * wrong)


def _mean_weight(rows: PoolRows, tilt: float) -> float:
    return sum(_weights(rows, tilt)) / len(rows)


def _weights(rows: PoolRows, tilt: float) -> list[float]:
    """Weights relative to that of the confidence at which they are greatest, so that none is infinite."""
    pivot = 1.0 if tilt > 0 else 0.0
    return [exp(tilt * (row[_CONFIDENCE] - pivot)) for row in rows]


def _resampled(rows: PoolRows, tilt: float) -> tuple[tuple[float, ...], ...]:
    return tuple(_evenly(rows, _weights(rows, tilt)))


def _evenly(rows: Sequence[T], weights: Sequence[float]) -> Iterator[T]:
    """`MAX_POOL_ROWS` rows of equal weight: those at evenly spaced places of the weights' running sum."""
    sums, place = list(accumulate(weights)), 0
    for i in range(MAX_POOL_ROWS):
        wanted = sums[-1] * (i + 0.5) / MAX_POOL_ROWS
        while sums[place] < wanted:
            place += 1
        yield rows[place]
