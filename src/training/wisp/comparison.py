"""All families on one split, at 0.5 and at the thresholds that one rule chooses: WISP's Tables 4 and 10 and Fig. 10."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serving.progress import Progress, silent
from training.fitting.trainer import Trainer
from training.synera.alignment import ClusterValues, clustered_auc, clustered_ratio
from training.wisp.evaluation import evaluate
from training.wisp.families import FittedPredictor, PredictorFamily
from training.wisp.matched_recall import fit_predictor
from training.wisp.rules import ThresholdRule, coverage
from training.wisp.samples import SampleSplit, TokenSamples

MetricRow = dict[str, ClusterValues | float]


def rows(
    families: Sequence[PredictorFamily],
    split: SampleSplit,
    rule: ThresholdRule,
    seed: int,
    trainer: Trainer,
    progress: Progress,
) -> dict[str, dict[str, MetricRow]]:
    """Per operating point and family what the test part shows.

    "at 0.5" is where a classifier draws the line by itself, "chosen" is by `rule` on validation.
    """
    found: dict[str, dict[str, MetricRow]] = {"at 0.5": {}, "chosen": {}}
    for i, family in enumerate(families):
        one = fit_predictor(family, split, seed, trainer, silent)
        found["at 0.5"][family.name] = row(one, split.test, 0.5)
        found["chosen"][family.name] = row(one, split.test, rule.threshold(one, split.validation))
        progress(i + 1, len(families), family.name)
    return found


def row(predictor: FittedPredictor, test: TokenSamples, threshold: float) -> MetricRow:
    """Metrics of one family at one threshold; shares and the AUC with a number for each session."""
    chances, stood = predictor.probabilities(test.features), test.accepted
    _, session = np.unique(test.session, return_inverse=True)
    n, through = int(session.max()) + 1, chances >= threshold
    metrics = evaluate(chances, stood, threshold)
    windows = test.windows
    return {
        "threshold": threshold,
        "accuracy": clustered_ratio(through == stood, np.ones(len(test), np.bool_), session, n),
        "auc": clustered_auc(chances, stood, session, n),
        "recall": clustered_ratio(through & stood, stood, session, n),
        "specificity": clustered_ratio(~through & ~stood, ~stood, session, n),
        "fpr": clustered_ratio(through & ~stood, ~stood, session, n),
        "fnr": clustered_ratio(~through & stood, stood, session, n),
        "balanced_accuracy": metrics["balanced_accuracy"],
        "ece": metrics["ece"],
        "brier": metrics["brier"],
        "coverage": coverage(windows, predictor.probabilities(windows.features), threshold),
        **{name: float(count) for name, count in metrics["confusion"].items()},
        "rejected": float((~stood).sum()),
        "accepted": float(stood.sum()),
    }
