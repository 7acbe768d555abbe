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
from training.synera.alignment import Cell
from training.synera.alignment import auc as auc_by_session
from training.wisp.families import Family, Fitted
from training.wisp.mlp import MLP
from training.wisp.samples import Samples, Split
from training.wisp.windows import Flags, Floats, Ints

SLOPE_WITHIN = 0.02
"""Recall on either side, over which a curve's slope is taken."""
Row = dict[str, Cell | float]


def rows(chances: Mapping[str, Floats], test: Samples, recalls: Sequence[float]) -> dict[str, dict[str, Row]]:
    """By recall and family: fpr, specificity, balanced accuracy; and the AUC, which is that of all recalls.

    Every cell is a number for each session, whose mean is the figure (see `training.synera.alignment`).
    """
    names, session = np.unique(test.session, return_inverse=True)
    stood, n = test.accepted, len(names)
    areas = {family: auc_by_session(own, stood, session, n) for family, own in chances.items()}
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


RECALLS = (0.75, 0.8, 0.95, 0.99)


def fitted(family: Family, split: Split, seed: int, trainer: Trainer, progress: Progress) -> Fitted:
    """Trained; a network says how far it is, trees are done before they could."""
    if isinstance(family, MLP):
        return family.fit(split.train, split.validation, seed, trainer, progress)
    return family.fit(split.train, split.validation, seed)


def measure(family: Family, split: Split, seed: int, trainer: Trainer, progress: Progress) -> dict[str, float]:
    """`validation/auc`, `test/auc`, FPR at equal recall of both, and the seconds that training took."""
    began = time.perf_counter()
    found = fitted(family, split, seed, trainer, progress)
    taken = time.perf_counter() - began
    parts = {"validation": split.validation, "test": split.test}
    judged = {f"{part}/{name}": value for part, own in parts.items() for name, value in _judged(found, own).items()}
    return judged | {"training_s": taken}


def _judged(found: Fitted, samples: Samples) -> dict[str, float]:
    chances = found.chances(samples.features)
    area = auc(chances, samples.accepted)
    assert area is not None, "a split has both kinds of tokens in every part"
    return {"auc": area} | {f"fpr_at_{at:g}": fpr_at(chances, samples.accepted, at) for at in RECALLS}
