"""Families of predictors where they let through the same share of the accepted tokens.

At thresholds of their own, families differ in where they stand on the curve as much as in the curve (WISP, Table 4):
here all are read at one recall, on one test part.

A family as a search tries it: trained and judged on validation, and on test for the record; nothing is served.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from serving.progress import Progress
from training.embedded_pair.draft_quality import auc
from training.fitting.trainer import Trainer
from training.synera.alignment import ClusterValues
from training.synera.alignment import clustered_auc as auc_by_session
from training.wisp.families import FittedPredictor, PredictorFamily
from training.wisp.mlp import MLP
from training.wisp.samples import SampleSplit, TokenSamples
from training.wisp.windows import Flags, Floats, Ints

SLOPE_RECALL_STEP = 0.02
"""Recall on either side, over which a curve's slope is taken."""
MetricRow = dict[str, ClusterValues | float]


def rows(
    probabilities: Mapping[str, Floats], test: TokenSamples, recalls: Sequence[float]
) -> dict[str, dict[str, MetricRow]]:
    """By recall and family: fpr, specificity, balanced accuracy; and the AUC, which is that of all recalls.

    Every cell is a number for each session, whose mean is the figure (see `training.synera.alignment`).
    """
    names, session = np.unique(test.session, return_inverse=True)
    stood, n = test.accepted, len(names)
    areas = {family: auc_by_session(own, stood, session, n) for family, own in probabilities.items()}
    return {
        f"recall {at:g}": {
            family: _row(fpr_by_session(own, stood, session, n, at), at) | {"auc": areas[family]}
            for family, own in probabilities.items()
        }
        for at in recalls
    }


def _row(fpr: ClusterValues, recall: float) -> MetricRow:
    each = np.asarray(fpr)
    specificity, balanced = 1 - each, (1 - each + recall) / 2
    return {"fpr": fpr, "specificity": specificity.tolist(), "balanced_accuracy": balanced.tolist()}


def fpr_at_recall(probabilities: Floats, accepted: Flags, recall: float) -> float:
    """Share of the rejected tokens let through by the threshold that lets through `recall` of the accepted ones.

    Of tokens at the threshold itself as many as are needed are let through, by lot.
    """
    threshold = _threshold(probabilities, accepted, recall)
    return float(_pass_weights(probabilities, accepted, threshold, recall)[~accepted].mean())


def fpr_by_session(
    probabilities: Floats, accepted: Flags, session: Ints, num_sessions: int, recall: float
) -> ClusterValues:
    """`fpr_at` as a number for each session.

    The threshold moves with the resampled sessions, which counts with the slope of the curve (linearisation).
    """
    value = fpr_at_recall(probabilities, accepted, recall)
    threshold = _threshold(probabilities, accepted, recall)
    around = [min(max(recall + side * SLOPE_RECALL_STEP, 0.0), 1.0) for side in (-1, 1)]
    ends = [fpr_at_recall(probabilities, accepted, at) for at in around]
    slope = (ends[1] - ends[0]) / (around[1] - around[0])
    let = _pass_weights(probabilities, accepted, threshold, recall)
    alarms, kept = (
        num_sessions * np.bincount(session[kind], let[kind] - at, num_sessions) / kind.sum()
        for kind, at in ((~accepted, value), (accepted, recall))
    )
    return list((value + alarms - slope * kept).tolist())


def _threshold(probabilities: Floats, accepted: Flags, recall: float) -> float:
    ordered = np.sort(probabilities[accepted])[::-1]
    return float(ordered[min(len(ordered) - 1, max(0, int(np.ceil(recall * len(ordered) - 1e-9)) - 1))])


def _pass_weights(probabilities: Floats, accepted: Flags, threshold: float, recall: float) -> Floats:
    """Per token whether it is let through: 1 above the threshold, 0 below it, at it the share that makes the recall."""
    own = probabilities[accepted]
    above, at = float(np.mean(own > threshold)), float(np.mean(own == threshold))
    return np.asarray(
        (probabilities > threshold) + min(max((recall - above) / at, 0.0), 1.0) * (probabilities == threshold)
    )


RECALLS = (0.75, 0.8, 0.95, 0.99)


def fit_predictor(
    family: PredictorFamily, split: SampleSplit, seed: int, trainer: Trainer, progress: Progress
) -> FittedPredictor:
    """Trained; a network says how far it is, trees are done before they could."""
    if isinstance(family, MLP):
        return family.fit(split.train, split.validation, seed, trainer, progress)
    return family.fit(split.train, split.validation, seed)


def evaluate_family(
    family: PredictorFamily, split: SampleSplit, seed: int, trainer: Trainer, progress: Progress
) -> dict[str, float]:
    """`validation/auc`, `test/auc`, FPR at equal recall of both, and the seconds that training took."""
    began = time.perf_counter()
    found = fit_predictor(family, split, seed, trainer, progress)
    taken = time.perf_counter() - began
    parts = {"validation": split.validation, "test": split.test}
    judged = {
        f"{part}/{name}": value for part, own in parts.items() for name, value in _auc_and_fpr(found, own).items()
    }
    return judged | {"training_s": taken}


def _auc_and_fpr(predictor: FittedPredictor, samples: TokenSamples) -> dict[str, float]:
    chances = predictor.probabilities(samples.features)
    area = auc(chances, samples.accepted)
    assert area is not None, "a split has both kinds of tokens in every part"
    return {"auc": area} | {f"fpr_at_{at:g}": fpr_at_recall(chances, samples.accepted, at) for at in RECALLS}
