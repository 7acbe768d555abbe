"""Shares, AUC and correlation over tokens that come in answers.

Tokens of one answer are not independent of each other, so a share or an AUC is given as one number for each answer:
their mean is the figure over all tokens, and their spread is the figure's when answers are resampled, to first order
(ratios: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 21.8, the delta method; AUC: Obuchowski
1997, Nonparametric analysis of clustered ROC curve data).
"""

from __future__ import annotations

from math import ceil

import numpy as np

from training.synera.alignment import Flags, Floats, Ints

Cell = list[float] | None


def ratio(of: Floats | Flags, among: Floats | Flags, answer: Ints, answers: int) -> Cell:
    """sum(of) / sum(among), by answer; None where nothing is among."""
    parts, wholes = (np.bincount(answer, each.astype(np.float64), answers) for each in (of, among))
    if not wholes.any():
        return None
    value = parts.sum() / wholes.sum()
    return list((value + (parts - value * wholes) / wholes.mean()).tolist())


def auc(scores: Floats, positive: Flags, answer: Ints, answers: int) -> Cell:
    """How often a positive scores above a negative, ties half, by answer; None with one kind only."""
    if positive.all() or not positive.any():
        return None
    beaten = np.where(positive, _below(scores, scores[~positive]), 1 - _below(scores, scores[positive]))
    value = beaten[positive].mean()
    weights = answers / np.where(positive, positive.sum(), (~positive).sum())
    return list((value + np.bincount(answer, weights * (beaten - value), answers)).tolist())


def spearman(a: Floats, b: Floats) -> float | None:
    """Rank correlation, ties at their mean rank; None where one of both never changes."""
    if min(len(np.unique(a)), len(np.unique(b))) < 2:
        return None
    return float(np.corrcoef(_below(a, a), _below(b, b))[0, 1])


def skewness(values: Floats) -> float | None:
    """Third standardised moment: 0 for a symmetrical distribution, 2 for an exponential one."""
    off = values - values.mean() if len(values) else values
    spread = float(np.sqrt(np.mean(off**2))) if len(values) else 0.0
    return float(np.mean((off / spread) ** 3)) if spread else None


def highest(scores: Floats, share: float) -> Flags:
    """The share of all that scores highest; the first of those that are alike."""
    chosen = np.zeros(len(scores), np.bool_)
    chosen[np.argsort(-scores, kind="stable")[: ceil(share * len(scores) - 1e-9)]] = True
    return chosen


def _below(scores: Floats, others: Floats) -> Floats:
    """Per score the share of the others that lie below it, ties half."""
    ordered = np.sort(others)
    sides = np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right")
    return np.asarray(sides / (2 * len(others)), np.float64)
