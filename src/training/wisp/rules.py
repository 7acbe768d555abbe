"""Operating thresholds: named rules that choose one on validation samples."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Protocol

import numpy as np

from training.wisp.families import Fitted
from training.wisp.samples import Samples
from training.wisp.windows import Flags, Floats, Windows


class Rule(Protocol):
    """How the threshold is chosen."""

    def threshold(self, fitted: Fitted, validation: Samples) -> float:
        """A chance in (0, 1); below it a token is a predicted rejection."""
        ...


@dataclass(frozen=True)
class Balanced:
    """Where the mean of recall on accepted and specificity on rejected tokens is highest."""

    def threshold(self, fitted: Fitted, validation: Samples) -> float:
        chances = fitted.chances(validation.features)
        candidates = np.unique(chances)
        kept, let = (_at_least(chances[kind], candidates) for kind in (validation.accepted, ~validation.accepted))
        return _inside(float(candidates[np.argmax(kept - let)]))


@dataclass(frozen=True)
class Recall:
    """The largest threshold that lets through the share `at` of the accepted tokens."""

    at: float = 0.75

    def __post_init__(self) -> None:
        _check(self.at, "Recall")

    def threshold(self, fitted: Fitted, validation: Samples) -> float:
        return _inside(at_recall(fitted.chances(validation.features), validation.accepted, self.at))


@dataclass(frozen=True)
class Coverage:
    """The largest threshold with which a round yields the share `at` of a full window's tokens.

    A round's tokens are the accepted drafts that are left where drafting stops, and the target's own one. When it is
    served a round yields one to three points less than that: the next one begins where drafting stopped, in front of a
    token that is likely to fall. So the default leaves room for 90 % of it.
    """

    at: float = 0.92

    def __post_init__(self) -> None:
        _check(self.at, "Coverage")

    def threshold(self, fitted: Fitted, validation: Samples) -> float:
        windows = validation.windows
        chances = fitted.chances(windows.features)
        candidates = np.unique(chances)
        low, high = 0, len(candidates) - 1
        while low < high:  # what is left falls with the threshold; the lowest candidate leaves all
            middle = (low + high + 1) // 2
            fits = coverage(windows, chances, float(candidates[middle])) >= self.at
            low, high = (middle, high) if fits else (low, middle - 1)
        return _inside(float(candidates[low]))


def coverage(windows: Windows, chances: Floats, threshold: float) -> float:
    """A round's tokens with `threshold` over those of full windows; `chances` are of the windows' tokens."""
    left = np.minimum(windows.sent(chances, threshold), windows.accepted)
    return float((left.mean() + 1) / (windows.accepted.mean() + 1))


def at_recall(chances: Floats, accepted: Flags, at: float) -> float:
    """The largest threshold that lets through the share `at` of the accepted tokens."""
    found = np.sort(chances[accepted])[::-1]
    return float(found[max(0, ceil(at * len(found) - 1e-9) - 1)])


def _at_least(chances: Floats, candidates: Floats) -> Floats:
    """Per candidate the share of the chances that are not below it."""
    return 1 - np.searchsorted(np.sort(chances), candidates, "left") / len(chances)


def _inside(threshold: float) -> float:
    return min(max(threshold, 1e-6), 1 - 1e-6)


def _check(at: float, rule: str) -> None:
    if not 0 < at < 1:
        raise ValueError(f"the rule {rule} has at={at}; it is a share between 0 and 1")
