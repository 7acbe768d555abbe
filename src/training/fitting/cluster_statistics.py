"""Shares, AUC and correlation over tokens that come in clusters: answers or sessions.

Tokens of one answer are not independent of each other. So a share or an AUC is given as one value for each cluster:
their mean is the figure over all tokens, and their spread is that of the figure when clusters are resampled, to first
order (ratios: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 21.8, the delta method; AUC:
Obuchowski 1997, Nonparametric analysis of clustered ROC curve data).
"""

from math import ceil

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]
ClusterValues = list[float] | None
"""One value for each cluster (an answer, a session); None where the statistic is undefined."""


def auc(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float | None:
    """Area under the ROC curve: the share of pairs in which a positive scores above a negative, ties
    half; None with one class only."""
    negatives = np.sort(scores[~positive])
    if not len(negatives) or len(negatives) == len(scores):
        return None
    below = np.searchsorted(negatives, scores[positive], side="left")
    up_to = np.searchsorted(negatives, scores[positive], side="right")
    return float((below + up_to).mean() / (2 * len(negatives)))


def clustered_ratio(
    numerator: Floats | Flags, denominator: Floats | Flags, cluster: Ints, num_clusters: int
) -> ClusterValues:
    """sum(numerator) / sum(denominator); None if the denominator is 0."""
    parts, wholes = (np.bincount(cluster, each.astype(np.float64), num_clusters) for each in (numerator, denominator))
    if not wholes.any():
        return None
    value = parts.sum() / wholes.sum()
    return list((value + (parts - value * wholes) / wholes.mean()).tolist())


def clustered_auc(scores: Floats, positive: Flags, cluster: Ints, num_clusters: int) -> ClusterValues:
    """Area under the ROC curve as in `auc`; None with one class only."""
    if positive.all() or not positive.any():
        return None
    beaten = np.where(positive, _rank_share(scores, scores[~positive]), 1 - _rank_share(scores, scores[positive]))
    value = beaten[positive].mean()
    weights = num_clusters / np.where(positive, positive.sum(), (~positive).sum())
    return list((value + np.bincount(cluster, weights * (beaten - value), num_clusters)).tolist())


def spearman(a: Floats, b: Floats) -> float | None:
    """Rank correlation, ties at their mean rank; None if one of the two is constant."""
    if min(len(np.unique(a)), len(np.unique(b))) < 2:
        return None
    return float(np.corrcoef(_rank_share(a, a), _rank_share(b, b))[0, 1])


def skewness(values: Floats) -> float | None:
    """Third standardised moment: 0 for a symmetrical distribution, 2 for an exponential one."""
    off = values - values.mean() if len(values) else values
    spread = float(np.sqrt(np.mean(off**2))) if len(values) else 0.0
    return float(np.mean((off / spread) ** 3)) if spread else None


def top_share(scores: Floats, share: float) -> Flags:
    """True for the share with the highest scores; among equal scores the first ones."""
    chosen = np.zeros(len(scores), np.bool_)
    chosen[np.argsort(-scores, kind="stable")[: ceil(share * len(scores) - 1e-9)]] = True
    return chosen


def _rank_share(scores: Floats, others: Floats) -> Floats:
    """For each score the share of the others below it, ties half."""
    ordered = np.sort(others)
    sides = np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right")
    return np.asarray(sides / (2 * len(others)), np.float64)
