"""WISP's Theorem 1 as an experiment: do fewer false alarms mean less waste, over predictors that are really trained?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from serving.progress import Progress, silent
from training.fitting.trainer import Trainer
from training.synera.alignment import Cell, ratio, spearman
from training.wisp.families import Family
from training.wisp.matched_recall import fitted
from training.wisp.rules import at_recall
from training.wisp.samples import Samples, Split
from training.wisp.waste import Held, Pairs, Point, pairs, rates
from training.wisp.windows import Floats

EMPTY, ONE = "pairs", "pairs, one token at least"
"""Both readings of where drafting stops, as tables call them: with empty drafts (Eq. 25), and as it is served."""
Row = dict[str, Cell | float]


@dataclass(frozen=True)
class Measured:
    """The points of both readings, in the same order, on the windows `held`."""

    held: Held
    points: Mapping[str, list[Point]]
    pairs: Mapping[str, Pairs]


def measure(
    samples: Samples,
    families: Mapping[str, Family],
    seeds: Sequence[int],
    recalls: Sequence[float],
    k: int,
    trainer: Trainer,
    progress: Progress,
) -> Measured:
    """Trains every predictor and lets each draft on the windows of the test part."""
    jobs = [
        (label if len(seeds) == 1 else f"{label}, seed {s}", one, s) for label, one in families.items() for s in seeds
    ]
    if len(jobs) < 2:
        raise ValueError(f"the theorem compares predictors, got {len(jobs)}; give more families or seeds")
    split = samples.split(seeds[0])
    held = Held.of(split.test.windows, k)
    points: dict[str, list[Point]] = {EMPTY: [], ONE: []}
    for i, (label, family, seed) in enumerate(jobs):
        for reading, own in _points(held, split, label, family, seed, recalls, trainer).items():
            points[reading] += own
        progress(i + 1, len(jobs), label)
    return Measured(held, points, {reading: pairs(held, own, seeds[0]) for reading, own in points.items()})


def _points(
    held: Held, split: Split, label: str, family: Family, seed: int, recalls: Sequence[float], trainer: Trainer
) -> dict[str, list[Point]]:
    found = fitted(family, split, seed, trainer, silent)
    known, chances = found.chances(split.validation.features), found.chances(held.windows.features)
    thresholds = {at: at_recall(known, split.validation.accepted, at) for at in recalls}
    return {
        reading: [held.point(label, at, chances, threshold, reading == EMPTY) for at, threshold in thresholds.items()]
        for reading in (EMPTY, ONE)
    }


def rows(found: Measured) -> dict[str, dict[str, Row]]:
    """Per predictor and recall: false alarms, waste in both readings, the bound of Eq. 31; and what pairs say."""
    table: dict[str, dict[str, Row]] = {}
    for point, served in zip(found.points[EMPTY], found.points[ONE], strict=True):
        table.setdefault(point.predictor, {})[f"recall {point.recall:g}"] = _row(found.held, point, served)
    return table | {reading: _pairs(found, reading) for reading in found.points}


def metrics(found: Measured) -> dict[str, float]:
    """Every number about pairs, as `reading/premise/name`."""
    return {
        f"{reading}/{premise}/{name}": cell
        for reading in found.points
        for premise, cells in _pairs(found, reading).items()
        for name, cell in cells.items()
        if isinstance(cell, float)
    }


def _row(held: Held, point: Point, served: Point) -> Row:
    whole = np.ones(len(held.windows))
    return {
        "fpr": _ratio(held, point.alarm.astype(np.float64), held.rejected.astype(np.float64)),
        "waste": _ratio(held, point.wasted.astype(np.float64), whole),
        "waste_one": _ratio(held, served.wasted.astype(np.float64), whole),
        "bound": held.bound(point),
    }


def _ratio(held: Held, of: Floats, among: Floats) -> Cell:
    return ratio(of, among, held.session, held.sessions)


def _pairs(found: Measured, reading: str) -> dict[str, Row]:
    """By premise: the overall rate is lower, or that of every position; and only pairs of different predictors."""
    own, points = found.pairs[reading], found.points[reading]
    alarms, waste = rates(found.held, points)
    beyond = sum(w > found.held.bound(point) + 1e-12 for w, point in zip(waste, points, strict=True))
    whole: Row = {"points": float(len(points)), "spearman": spearman(alarms, waste), "beyond_bound": float(beyond)}
    return {
        "FPR lower": {**own.count(own.fewer), **whole},
        "FPR lower, other predictor": {**own.count(own.fewer & own.apart)},
        "Eq. 32": {**own.count(own.everywhere)},
        "Eq. 32, other predictor": {**own.count(own.everywhere & own.apart)},
    }
