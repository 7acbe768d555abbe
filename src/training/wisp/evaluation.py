"""Evaluation of one predictor: classification and calibration (WISP, Tables 4 and 10), latency per token (Table 11),
and drafting with and without it when it is served.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.core.scores import LOGIT_SCORES
from serving.messages import DraftDecision
from serving.policy.policy import Policy
from serving.policy.slots.draft import Draft
from serving.policy.slots.early_exit import EarlyExit
from training.fitting.cluster_statistics import auc
from training.synera.thresholds import profiling_policy
from training.wisp.families import FittedPredictor
from training.wisp.trace import Flags, Floats, Ints

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
        """Share of the accepted tokens that are predicted accepted (Rec1)."""
        return self.tp / max(1, self.tp + self.fn)

    @property
    def specificity(self) -> float:
        """Share of the rejected tokens that are predicted rejected."""
        return self.tn / max(1, self.tn + self.fp)

    @property
    def accuracy(self) -> float:
        return (self.tn + self.tp) / max(1, self.tn + self.fp + self.fn + self.tp)


def confusion(probabilities: Floats, accepted: Flags, threshold: float) -> ConfusionMatrix:
    predicted = probabilities >= threshold
    cells = [(actual, said) for actual in (False, True) for said in (False, True)]
    return ConfusionMatrix(*(int(((accepted == actual) & (predicted == said)).sum()) for actual, said in cells))


def evaluate(probabilities: Floats, accepted: Flags, threshold: float) -> dict[str, Any]:
    """Metrics at `threshold` by name; auc is None with one class of tokens only.

    The calibration error is the mean distance of probability and accepted share in ten bins of equal width, weighted by
    tokens (Naeini et al. 2015).
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
    """Ten bins of the probability: from, to, tokens, mean probability, accepted share; without empty bins."""
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
    """mean, median, std, min, max, p95, p99 in seconds of `num_calls` calls, after 100 warm-up calls.

    The calls take the rows of `features`, of shape (n, 4), in turn, as plain numbers like a drafter's.
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


def tracing_policy(draft: Draft, early_exit: EarlyExit) -> Policy:
    """The policy under which traces are recorded: every draft is verified with all its logit scores."""
    return profiling_policy(draft, early_exit, LOGIT_SCORES)


RESAMPLES = 2000
CONFIDENCE_LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class DraftCounts:
    """Counts of n sessions, each of shape (n,)."""

    rounds: Ints
    drafted: Ints
    accepted: Ints

    def rates(self, session_indices: Ints) -> dict[str, Floats]:
        """Means over the rounds of the sessions `session_indices` (..., n); shape (...)."""
        rounds, drafted, accepted = (
            each[session_indices].sum(-1) for each in (self.rounds, self.drafted, self.accepted)
        )
        return {
            "acceptance_rate": accepted / drafted,
            "tokens_per_round": accepted / rounds + 1,
            "drafts_per_round": drafted / rounds,
            "wasted_per_round": (drafted - accepted) / rounds,
        }


def count_drafts(sessions: Sequence[Sequence[DraftDecision]]) -> DraftCounts:
    """Counts each session's verified windows."""
    windows = [[decision for decision in session if decision.tokens] for session in sessions]
    return DraftCounts(
        np.array([len(decisions) for decisions in windows], np.int64),
        np.array([sum(len(each.tokens) for each in decisions) for decisions in windows], np.int64),
        np.array([sum(each.accepted or 0 for each in decisions) for decisions in windows], np.int64),
    )


def compare(baseline: DraftCounts, with_predictor: DraftCounts, seed: int) -> dict[str, Any]:
    """For each rate: without, with, ratio, each as [value, low, high]; both sides use the same resampled sessions.

    Percentile intervals of 95 % (Efron and Tibshirani 1993, chapter 13). Raises ValueError if nothing was drafted.
    """
    n = len(baseline.rounds)
    if not baseline.rounds.sum() or not with_predictor.rounds.sum():
        raise ValueError("not one draft was made on the held-out prompts; raise workload.profiling.num_prompts")
    picked = np.random.default_rng(seed).integers(n, size=(RESAMPLES, n))
    picked = picked[(baseline.rounds[picked].sum(-1) > 0) & (with_predictor.rounds[picked].sum(-1) > 0)]
    every = np.arange(n)
    found: dict[str, Any] = {"sessions": n}
    for name in baseline.rates(every):
        pairs = [(counts.rates(every)[name], counts.rates(picked)[name]) for counts in (baseline, with_predictor)]
        found[name] = {
            "without": _interval(*pairs[0]),
            "with": _interval(*pairs[1]),
            "ratio": _interval(*(_ratio(pairs[1][i], pairs[0][i]) for i in range(2))),
        }
    return found


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(denominator > 0, numerator / denominator, np.nan))


def _interval(value: Any, resampled: Floats) -> list[float | None]:
    known = resampled[np.isfinite(resampled)]
    low, high = (
        np.quantile(known, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2]) if len(known) else (np.nan, np.nan)
    )
    return [float(each) if np.isfinite(each) else None for each in (value, low, high)]
