"""Shifts a fitted model of acceptance to a stated one, as if the same pair served text that is easier or harder.

A recorded row with the confidence c counts w = exp(tilt * c) times, whether its draft was right or wrong. The chance
that a draft is right, given its scores, stays what was recorded, so that confidence, and every score or predictor that
was trained on the pair, is as well calibrated as before; how often each score occurs changes. Of all weights of scores
that lead to the stated acceptance these change their distribution least (an exponential tilt: Kullback's minimum
discrimination information). By Bayes' rule the chance p of a state of the Markov chain becomes

    p' = p E[w | right] / (p E[w | right] + (1 - p) E[w | wrong])

with the means over the state's recorded rows. `tilt` is found by bisection.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import exp
from pathlib import Path

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

PoolRows = Sequence[tuple[float, ...]]


def load(
    path: Path,
    acceptance: float | None = None,
    prompt_lengths: PromptLengths | None = None,
    full_length_answers: bool = False,
    answer_lengths: AnswerLengths | None = None,
) -> FittedAcceptance:
    """As `serving.outcomes.fitted.load`, shifted to `acceptance`; None: as it was fitted.

    Raises ValueError for an acceptance that no weight of the recorded rows leads to.
    """
    model = fitted.load(path, prompt_lengths, full_length_answers, answer_lengths)
    return model if acceptance is None else shift(model, acceptance)


def planned_load(acceptance: float | None = None, **_: object) -> PlannedOutcomes:
    """What a plan knows of the model, before it is fitted. Raises ValueError for an acceptance that is no share."""
    if acceptance is not None:
        _check_share(acceptance)
    return PlannedOutcomes("runtime/outcomes=shifted", draws_trees=True, is_text=False)


def stationary_acceptance(probabilities: MatchProbabilities) -> float:
    """The share of right drafts in the long run of the Markov chain."""
    leave = 1 - probabilities.after_right + probabilities.after_wrong
    return probabilities.after_wrong / leave if leave else probabilities.first


def shift(model: FittedAcceptance, acceptance: float) -> FittedAcceptance:
    """The model whose share of right drafts in the long run is `acceptance`.

    Raises ValueError for an acceptance that is out of reach, and for one whose trees the target's heads proposed, which
    are recorded whole.
    """
    _check_share(acceptance)
    if model.medusa_tree:
        raise ValueError(
            "runtime.outcomes.acceptance shifts drafts of a draft model, and this trace has trees that heads of the "
            "target proposed; leave the acceptance out"
        )
    if acceptance == stationary_acceptance(model.probabilities):
        return replace(model, shifted_to=acceptance)
    tilt = _find_tilt(model, acceptance)
    pools = replace(model.pools, rows=tuple(_resampled(rows, tilt) for rows in model.pools.rows))
    return replace(model, probabilities=_tilted(model, tilt), pools=pools, shifted_to=acceptance)


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
    low, high = -MAX_TILT, MAX_TILT
    least, most = reachable_acceptance(model)
    if not least <= acceptance <= most:
        raise ValueError(
            f"runtime.outcomes.acceptance is {acceptance}, and the recorded drafts allow {least:.3f} to {most:.3f}: "
            "their confidence tells right from wrong no better; choose one between, or another pair"
        )
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if stationary_acceptance(_tilted(model, middle)) < acceptance else (low, middle)
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
    """`MAX_POOL_ROWS` rows of equal weight: those at evenly spaced places of the weights' running sum."""
    sums = list(accumulate(_weights(rows, tilt)))
    found, place = list[tuple[float, ...]](), 0
    for i in range(MAX_POOL_ROWS):
        wanted = sums[-1] * (i + 0.5) / MAX_POOL_ROWS
        while sums[place] < wanted:
            place += 1
        found.append(rows[place])
    return tuple(found)
