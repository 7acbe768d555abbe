"""WISP's Theorem 1 as an experiment: do fewer false alarms mean less waste, over predictors that are really trained?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from serving.progress import Progress, silent
from training.fitting.trainer import Trainer
from training.synera.alignment import ClusterValues, clustered_ratio, spearman
from training.wisp.families import PredictorFamily
from training.wisp.matched_recall import fit_predictor
from training.wisp.rules import threshold_at_recall
from training.wisp.samples import SampleSplit, TokenSamples
from training.wisp.waste import HeldOutWindows, OperatingPoint, PointPairs, compare_pairs, fpr_and_waste
from training.wisp.windows import Floats

EMPTY_DRAFTS, NONEMPTY_DRAFTS = "pairs", "pairs, one token at least"
"""Both readings of where drafting stops, as tables call them: with empty drafts (Eq. 25), and as it is served."""
MetricRow = dict[str, ClusterValues | float]


@dataclass(frozen=True)
class TheoremResult:
    """The points of both readings, in the same order, on the windows `windows`."""

    windows: HeldOutWindows
    points: Mapping[str, list[OperatingPoint]]
    pairs: Mapping[str, PointPairs]


def measure_theorem(
    samples: TokenSamples,
    families: Mapping[str, PredictorFamily],
    seeds: Sequence[int],
    recalls: Sequence[float],
    k: int,
    trainer: Trainer,
    progress: Progress,
) -> TheoremResult:
    """Trains every predictor and lets each draft on the windows of the test part."""
    jobs = [
        (label if len(seeds) == 1 else f"{label}, seed {s}", one, s) for label, one in families.items() for s in seeds
    ]
    if len(jobs) < 2:
        raise ValueError(f"the theorem compares predictors, got {len(jobs)}; give more families or seeds")
    split = samples.split(seeds[0])
    held = HeldOutWindows.from_windows(split.test.windows, k)
    points: dict[str, list[OperatingPoint]] = {EMPTY_DRAFTS: [], NONEMPTY_DRAFTS: []}
    for i, (label, family, seed) in enumerate(jobs):
        for reading, own in _operating_points(held, split, label, family, seed, recalls, trainer).items():
            points[reading] += own
        progress(i + 1, len(jobs), label)
    return TheoremResult(held, points, {reading: compare_pairs(held, own, seeds[0]) for reading, own in points.items()})


def _operating_points(
    windows: HeldOutWindows,
    split: SampleSplit,
    label: str,
    family: PredictorFamily,
    seed: int,
    recalls: Sequence[float],
    trainer: Trainer,
) -> dict[str, list[OperatingPoint]]:
    found = fit_predictor(family, split, seed, trainer, silent)
    known, chances = found.probabilities(split.validation.features), found.probabilities(windows.windows.features)
    thresholds = {at: threshold_at_recall(known, split.validation.accepted, at) for at in recalls}
    return {
        reading: [
            windows.operating_point(label, at, chances, threshold, reading == EMPTY_DRAFTS)
            for at, threshold in thresholds.items()
        ]
        for reading in (EMPTY_DRAFTS, NONEMPTY_DRAFTS)
    }


def rows(found: TheoremResult) -> dict[str, dict[str, MetricRow]]:
    """Per predictor and recall: false alarms, waste in both readings, the bound of Eq. 31; and what pairs say."""
    table: dict[str, dict[str, MetricRow]] = {}
    for point, served in zip(found.points[EMPTY_DRAFTS], found.points[NONEMPTY_DRAFTS], strict=True):
        table.setdefault(point.predictor, {})[f"recall {point.recall:g}"] = _row(found.windows, point, served)
    return table | {reading: _pair_rows(found, reading) for reading in found.points}


def metrics(found: TheoremResult) -> dict[str, float]:
    """Every number about pairs, as `reading/premise/name`."""
    return {
        f"{reading}/{premise}/{name}": cell
        for reading in found.points
        for premise, cells in _pair_rows(found, reading).items()
        for name, cell in cells.items()
        if isinstance(cell, float)
    }


def _row(windows: HeldOutWindows, point: OperatingPoint, nonempty_point: OperatingPoint) -> MetricRow:
    whole = np.ones(len(windows.windows))
    return {
        "fpr": _ratio(windows, point.false_alarm.astype(np.float64), windows.rejected.astype(np.float64)),
        "waste": _ratio(windows, point.wasted_tokens.astype(np.float64), whole),
        "waste_at_least_one_token": _ratio(windows, nonempty_point.wasted_tokens.astype(np.float64), whole),
        "bound": windows.waste_bound(point),
    }


def _ratio(windows: HeldOutWindows, numerator: Floats, denominator: Floats) -> ClusterValues:
    return clustered_ratio(numerator, denominator, windows.session_index, windows.num_sessions)


def _pair_rows(found: TheoremResult, reading: str) -> dict[str, MetricRow]:
    """By premise: the overall rate is lower, or that of every position; and only pairs of different predictors."""
    own, points = found.pairs[reading], found.points[reading]
    alarms, waste = fpr_and_waste(found.windows, points)
    beyond = sum(w > found.windows.waste_bound(point) + 1e-12 for w, point in zip(waste, points, strict=True))
    whole: MetricRow = {
        "points": float(len(points)),
        "spearman": spearman(alarms, waste),
        "bound_violations": float(beyond),
    }
    return {
        "FPR lower": {**own.count(own.lower_fpr), **whole},
        "FPR lower, other predictor": {**own.count(own.lower_fpr & own.different_predictors)},
        "Eq. 32": {**own.count(own.lower_fpr_everywhere)},
        "Eq. 32, other predictor": {**own.count(own.lower_fpr_everywhere & own.different_predictors)},
    }
