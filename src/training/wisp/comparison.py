"""Families of predictors compared on one test part of one split (WISP, Tables 4, 9 and 10, Fig. 10).

At thresholds of their own, families differ in their operating point as much as in their curve. So they are also read
at one recall.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from serving.progress import Progress
from training.fitting.cluster_statistics import ClusterValues, auc, clustered_auc, clustered_ratio
from training.fitting.trainer import Trainer
from training.wisp.evaluation import evaluate
from training.wisp.families import FittedPredictor, PredictorFamily, fit_families, fit_predictor
from training.wisp.rules import ThresholdRule, coverage, threshold_at_recall
from training.wisp.samples import SampleSplit, TokenSamples
from training.wisp.trace import Flags, Floats, Ints

MetricRow = dict[str, ClusterValues | float]
MetricTable = Mapping[str, Mapping[str, MetricRow]]
"""Group -> family -> metrics."""
SLOPE_RECALL_STEP = 0.02
"""Step in recall on either side over which a curve's slope is taken."""


def rows_by_seed(
    seeds: Sequence[int], rows: Callable[[int, Progress], MetricTable], progress: Progress
) -> dict[str, dict[str, dict[str, Any]]]:
    """The tables of all seeds in one, with cells `{"by_seed": {seed: cell}}`. Raises ValueError without a seed."""
    if not seeds:
        raise ValueError("seeds are empty; give one at least")

    def report(number: int) -> Progress:
        return lambda done, total, note: progress(number * total + done, len(seeds) * total, note)

    tables = {seed: rows(seed, report(number)) for number, seed in enumerate(seeds)}
    first = tables[seeds[0]]
    return {
        group: {
            family: {
                metric: {"by_seed": {str(seed): table[group][family][metric] for seed, table in tables.items()}}
                for metric in row
            }
            for family, row in own.items()
        }
        for group, own in first.items()
    }


def chosen_threshold_rows(
    families: Sequence[PredictorFamily],
    split: SampleSplit,
    rule: ThresholdRule,
    seed: int,
    trainer: Trainer,
    progress: Progress,
) -> dict[str, dict[str, MetricRow]]:
    """Metrics of the test part by operating point and family.

    "at 0.5" is a classifier's own threshold; "chosen" is the threshold of `rule` on validation.
    """
    found: dict[str, dict[str, MetricRow]] = {"at 0.5": {}, "chosen": {}}
    for name, one in fit_families(families, split, seed, trainer, progress):
        found["at 0.5"][name] = _metrics_row(one, split.test, 0.5)
        found["chosen"][name] = _metrics_row(one, split.test, rule.threshold(one, split.validation))
    return found


def _metrics_row(predictor: FittedPredictor, test: TokenSamples, threshold: float) -> MetricRow:
    """Metrics of one family at one threshold; shares and the AUC have one value for each session."""
    probabilities, accepted = predictor.probabilities(test.features), test.accepted
    _, session = np.unique(test.session, return_inverse=True)
    n, predicted = int(session.max()) + 1, probabilities >= threshold
    metrics = evaluate(probabilities, accepted, threshold)
    windows = test.windows
    return {
        "threshold": threshold,
        "accuracy": clustered_ratio(predicted == accepted, np.ones(len(test), np.bool_), session, n),
        "auc": clustered_auc(probabilities, accepted, session, n),
        "recall": clustered_ratio(predicted & accepted, accepted, session, n),
        "specificity": clustered_ratio(~predicted & ~accepted, ~accepted, session, n),
        "fpr": clustered_ratio(predicted & ~accepted, ~accepted, session, n),
        "fnr": clustered_ratio(~predicted & accepted, accepted, session, n),
        "balanced_accuracy": metrics["balanced_accuracy"],
        "ece": metrics["ece"],
        "brier": metrics["brier"],
        "coverage": coverage(windows, predictor.probabilities(windows.features), threshold),
        **{name: float(count) for name, count in metrics["confusion"].items()},
        "rejected": float((~accepted).sum()),
        "accepted": float(accepted.sum()),
    }


def matched_recall_rows(
    probabilities: Mapping[str, Floats], test: TokenSamples, recalls: Sequence[float]
) -> dict[str, dict[str, MetricRow]]:
    """By recall and family: fpr, specificity and balanced accuracy; and the AUC, the same for every recall.

    Every cell has one value for each session (see `training.fitting.cluster_statistics`).
    """
    names, session = np.unique(test.session, return_inverse=True)
    accepted, n = test.accepted, len(names)
    areas = {family: clustered_auc(own, accepted, session, n) for family, own in probabilities.items()}
    return {
        f"recall {at:g}": {
            family: _fpr_row(fpr_by_session(own, accepted, session, n, at), at) | {"auc": areas[family]}
            for family, own in probabilities.items()
        }
        for at in recalls
    }


def _fpr_row(fpr: ClusterValues, recall: float) -> MetricRow:
    each = np.asarray(fpr)
    specificity, balanced = 1 - each, (1 - each + recall) / 2
    return {"fpr": fpr, "specificity": specificity.tolist(), "balanced_accuracy": balanced.tolist()}


def fpr_at_recall(probabilities: Floats, accepted: Flags, recall: float) -> float:
    """False-positive rate at the threshold with this recall.

    Of tokens at the threshold itself a random share passes, so that the recall is exact.
    """
    threshold = threshold_at_recall(probabilities, accepted, recall)
    return float(_pass_weights(probabilities, accepted, threshold, recall)[~accepted].mean())


def fpr_by_session(
    probabilities: Floats, accepted: Flags, session: Ints, num_sessions: int, recall: float
) -> ClusterValues:
    """`fpr_at_recall` as one value for each session.

    When sessions are resampled the threshold moves too; its effect is the slope of the curve (linearisation).
    """
    value = fpr_at_recall(probabilities, accepted, recall)
    threshold = threshold_at_recall(probabilities, accepted, recall)
    around = [min(max(recall + side * SLOPE_RECALL_STEP, 0.0), 1.0) for side in (-1, 1)]
    ends = [fpr_at_recall(probabilities, accepted, at) for at in around]
    slope = (ends[1] - ends[0]) / (around[1] - around[0])
    passed = _pass_weights(probabilities, accepted, threshold, recall)
    alarms, kept = (
        num_sessions * np.bincount(session[kind], passed[kind] - at, num_sessions) / kind.sum()
        for kind, at in ((~accepted, value), (accepted, recall))
    )
    return list((value + alarms - slope * kept).tolist())


def _pass_weights(probabilities: Floats, accepted: Flags, threshold: float, recall: float) -> Floats:
    """For each token the share that passes: 1 above the threshold, 0 below; at it the share that gives `recall`."""
    own = probabilities[accepted]
    above, at = float(np.mean(own > threshold)), float(np.mean(own == threshold))
    return np.asarray(
        (probabilities > threshold) + min(max((recall - above) / at, 0.0), 1.0) * (probabilities == threshold)
    )


RECALLS = (0.75, 0.8, 0.95, 0.99)


def family_metrics(
    family: PredictorFamily, split: SampleSplit, seed: int, trainer: Trainer, progress: Progress
) -> dict[str, float]:
    """AUC and FPR at equal recalls on validation and test, and the seconds of training; nothing is served."""
    began = time.perf_counter()
    found = fit_predictor(family, split, seed, trainer, progress)
    taken = time.perf_counter() - began
    parts = {"validation": split.validation, "test": split.test}
    metrics = {
        f"{part}/{name}": value for part, own in parts.items() for name, value in _auc_and_fpr(found, own).items()
    }
    return metrics | {"training_s": taken}


def _auc_and_fpr(predictor: FittedPredictor, samples: TokenSamples) -> dict[str, float]:
    probabilities = predictor.probabilities(samples.features)
    area = auc(probabilities, samples.accepted)
    assert area is not None, "a split has both classes of tokens in every part"
    return {"auc": area} | {f"fpr_at_{at:g}": fpr_at_recall(probabilities, samples.accepted, at) for at in RECALLS}
