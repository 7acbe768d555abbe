"""How well a predictor tells accepted from rejected tokens: Tables 4 and 10 of WISP, and calibration.

How long a predictor takes for one token (WISP, Table 11).

The policy under which drafts are traced: every window is judged, and every score of it is kept.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from serving.core.scores import LOGIT_SCORES
from serving.core.session import Session
from serving.policy.policy import Policy
from serving.policy.slots.draft import Draft
from serving.policy.slots.early_exit import EarlyExit
from training.embedded_pair.draft_quality import auc
from training.synera.thresholds import profiling_policy
from training.wisp.families import FittedPredictor
from training.wisp.windows import Flags, Floats

BINS = 10


@dataclass(frozen=True)
class ConfusionMatrix:
    """Counts at one threshold. Accepted is the positive class, as in Table 10."""

    tn: int
    fp: int
    fn: int
    tp: int

    @property
    def recall(self) -> float:
        """Share of the accepted tokens that are let through (Rec1)."""
        return self.tp / max(1, self.tp + self.fn)

    @property
    def specificity(self) -> float:
        """Share of the rejected tokens that are told."""
        return self.tn / max(1, self.tn + self.fp)

    @property
    def accuracy(self) -> float:
        return (self.tn + self.tp) / max(1, self.tn + self.fp + self.fn + self.tp)


def confusion(probabilities: Floats, accepted: Flags, threshold: float) -> ConfusionMatrix:
    through = probabilities >= threshold
    cells = [(stood, let) for stood in (False, True) for let in (False, True)]
    return ConfusionMatrix(*(int(((accepted == stood) & (through == let)).sum()) for stood, let in cells))


def evaluate(probabilities: Floats, accepted: Flags, threshold: float) -> dict[str, Any]:
    """Metrics at `threshold` by name; auc is null with one kind of token only.

    The calibration error is the mean distance of confidence and share in ten bins of equal width, weighted by tokens
    (Naeini et al. 2015).
    """
    found = confusion(probabilities, accepted, threshold)
    bins = reliability_bins(probabilities, accepted)
    return {
        "threshold": threshold,
        "samples": len(accepted),
        "accuracy": found.accuracy,
        "auc": auc(probabilities, accepted),
        "recall": found.recall,
        "specificity": found.specificity,
        "fpr": 1 - found.specificity,
        "balanced_accuracy": (found.recall + found.specificity) / 2,
        "confusion": asdict(found),
        "ece": sum(row["tokens"] * abs(row["probability"] - row["accepted"]) for row in bins) / max(1, len(accepted)),
        "brier": float(np.mean((probabilities - accepted) ** 2)),
        "reliability": bins,
    }


def reliability_bins(probabilities: Floats, accepted: Flags) -> list[dict[str, float]]:
    """Ten bins of chance: from, to, tokens, mean chance, share accepted; empty bins are left out."""
    place = np.minimum((probabilities * BINS).astype(np.int64), BINS - 1)
    return [
        {
            "from": i / BINS,
            "to": (i + 1) / BINS,
            "tokens": int((place == i).sum()),
            "probability": float(probabilities[place == i].mean()),
            "accepted": float(accepted[place == i].mean()),
        }
        for i in range(BINS)
        if (place == i).any()
    ]


WARMUP_CALLS = 100


def token_latency(predictor: FittedPredictor, features: NDArray[np.float32], num_calls: int = 1000) -> dict[str, float]:
    """mean, median, std, min, max, p95, p99 in seconds of `num_calls` calls, after 100 that do not count.

    `features` of shape (n, 4) are asked about in turn, as plain numbers, as a drafter has them.
    """
    rows = [tuple(map(float, row)) for row in features[: WARMUP_CALLS + num_calls]]
    taken = []
    for i in range(WARMUP_CALLS + num_calls):
        began = time.perf_counter()
        predictor.probability(rows[i % len(rows)])
        taken.append(time.perf_counter() - began)
    return _latency_statistics(np.array(taken[WARMUP_CALLS:]))


def _latency_statistics(seconds: NDArray[np.float64]) -> dict[str, float]:
    return {
        "mean": float(seconds.mean()),
        "median": float(np.median(seconds)),
        "std": float(seconds.std()),
        "min": float(seconds.min()),
        "max": float(seconds.max()),
        "p95": float(np.quantile(seconds, 0.95)),
        "p99": float(np.quantile(seconds, 0.99)),
    }


@dataclass(frozen=True)
class TracingOffload:
    """Every draft is verified, with all that can be told from its logits."""

    scope: ClassVar[Literal["all"]] = "all"
    requested_scores: ClassVar[tuple[str, ...]] = LOGIT_SCORES

    def tokens_to_offload(self, session: Session) -> int:  # noqa: ARG002
        return 1


def tracing_policy(draft: Draft, early_exit: EarlyExit) -> Policy:
    """Drafts are written as they will be when they are served, all else is out of the way."""
    return replace(profiling_policy(draft, early_exit), offload=TracingOffload())
