"""Families of predictors where they let through the same share of the accepted tokens.

At thresholds of their own, families differ in where they stand on the curve as much as in the curve (WISP, Table 4):
here all are read at one recall, on one test part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from training.synera.estimates import Cell, auc
from training.wisp.samples import Samples
from training.wisp.windows import Flags, Floats, Ints

SLOPE_WITHIN = 0.02
"""Recall on either side, over which a curve's slope is taken."""
Row = dict[str, Cell | float]


def rows(chances: Mapping[str, Floats], test: Samples, recalls: Sequence[float]) -> dict[str, dict[str, Row]]:
    """By recall and family: fpr, specificity, balanced accuracy; and the AUC, which is that of all recalls.

    Every cell is a number for each session, whose mean is the figure (see `training.synera.estimates`).
    """
    names, session = np.unique(test.session, return_inverse=True)
    stood, n = test.accepted, len(names)
    areas = {family: auc(own, stood, session, n) for family, own in chances.items()}
    return {
        f"recall {at:g}": {
            family: _row(false_alarms(own, stood, session, n, at), at) | {"auc": areas[family]}
            for family, own in chances.items()
        }
        for at in recalls
    }


def _row(fpr: Cell, at: float) -> Row:
    each = np.asarray(fpr)
    specificity, balanced = 1 - each, (1 - each + at) / 2
    return {"fpr": fpr, "specificity": specificity.tolist(), "balanced_accuracy": balanced.tolist()}


def fpr_at(chances: Floats, accepted: Flags, recall: float) -> float:
    """Share of the rejected tokens let through by the threshold that lets through `recall` of the accepted ones.

    Of tokens at the threshold itself as many as are needed are let through, by lot.
    """
    threshold = _threshold(chances, accepted, recall)
    return float(_let(chances, accepted, threshold, recall)[~accepted].mean())


def false_alarms(chances: Floats, accepted: Flags, session: Ints, sessions: int, recall: float) -> Cell:
    """`fpr_at` as a number for each session.

    The threshold moves with the resampled sessions, which counts with the slope of the curve (linearisation).
    """
    value = fpr_at(chances, accepted, recall)
    threshold = _threshold(chances, accepted, recall)
    around = [min(max(recall + side * SLOPE_WITHIN, 0.0), 1.0) for side in (-1, 1)]
    ends = [fpr_at(chances, accepted, at) for at in around]
    slope = (ends[1] - ends[0]) / (around[1] - around[0])
    let = _let(chances, accepted, threshold, recall)
    alarms, kept = (
        sessions * np.bincount(session[kind], let[kind] - at, sessions) / kind.sum()
        for kind, at in ((~accepted, value), (accepted, recall))
    )
    return list((value + alarms - slope * kept).tolist())


def _threshold(chances: Floats, accepted: Flags, recall: float) -> float:
    ordered = np.sort(chances[accepted])[::-1]
    return float(ordered[min(len(ordered) - 1, max(0, int(np.ceil(recall * len(ordered) - 1e-9)) - 1))])


def _let(chances: Floats, accepted: Flags, threshold: float, recall: float) -> Floats:
    """Per token whether it is let through: 1 above the threshold, 0 below it, at it the share that makes the recall."""
    own = chances[accepted]
    above, at = float(np.mean(own > threshold)), float(np.mean(own == threshold))
    return np.asarray((chances > threshold) + min(max((recall - above) / at, 0.0), 1.0) * (chances == threshold))
