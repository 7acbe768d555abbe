"""Operating thresholds: named rules that choose one on validation samples."""

from dataclasses import dataclass
from math import ceil
from typing import Protocol

import numpy as np

from training.wisp.families import FittedPredictor
from training.wisp.samples import TokenSamples
from training.wisp.trace import DraftWindows, Flags, Floats


class ThresholdRule(Protocol):
    """Chooses a threshold on validation samples."""

    def threshold(self, predictor: FittedPredictor, validation: TokenSamples) -> float:
        """A probability in (0, 1); a token below it is a predicted rejection."""
        ...


@dataclass(frozen=True)
class BalancedAccuracyRule:
    """The threshold with the highest mean of recall on accepted and specificity on rejected tokens."""

    def threshold(self, predictor: FittedPredictor, validation: TokenSamples) -> float:
        probabilities = predictor.probabilities(validation.features)
        candidates = np.unique(probabilities)
        kept, let = (
            _shares_at_least(probabilities[kind], candidates) for kind in (validation.accepted, ~validation.accepted)
        )
        return _clamp(float(candidates[np.argmax(kept - let)]))


@dataclass(frozen=True)
class RecallRule:
    """The largest threshold that lets through the share `target` of the accepted tokens."""

    target: float = 0.75

    def __post_init__(self) -> None:
        _check_target(self.target, "RecallRule")

    def threshold(self, predictor: FittedPredictor, validation: TokenSamples) -> float:
        return _clamp(
            threshold_at_recall(predictor.probabilities(validation.features), validation.accepted, self.target)
        )


@dataclass(frozen=True)
class CoverageRule:
    """The largest threshold with which a round yields the share `target` of a full window's tokens.

    A round's tokens are the accepted drafts before drafting stops, and the target's own token. Served rounds yielded
    one to three percentage points less than recorded windows. So the default leaves room for 90 % when it is served.
    """

    target: float = 0.92

    def __post_init__(self) -> None:
        _check_target(self.target, "CoverageRule")

    def threshold(self, predictor: FittedPredictor, validation: TokenSamples) -> float:
        windows = validation.windows
        probabilities = predictor.probabilities(windows.features)
        candidates = np.unique(probabilities)
        low, high = 0, len(candidates) - 1
        while low < high:  # coverage falls with the threshold; the lowest candidate covers all
            middle = (low + high + 1) // 2
            fits = coverage(windows, probabilities, float(candidates[middle])) >= self.target
            low, high = (middle, high) if fits else (low, middle - 1)
        return _clamp(float(candidates[low]))


def coverage(windows: DraftWindows, probabilities: Floats, threshold: float) -> float:
    """Tokens per round with `threshold` over those of full windows; `probabilities` are of the windows' tokens."""
    left = np.minimum(windows.truncated_lengths(probabilities, threshold), windows.accepted_lengths)
    return float((left.mean() + 1) / (windows.accepted_lengths.mean() + 1))


def threshold_at_recall(probabilities: Floats, accepted: Flags, recall: float) -> float:
    """The largest threshold that lets through the share `recall` of the accepted tokens."""
    found = np.sort(probabilities[accepted])[::-1]
    return float(found[max(0, ceil(recall * len(found) - 1e-9) - 1)])


def _shares_at_least(probabilities: Floats, candidates: Floats) -> Floats:
    """For each candidate the share of the probabilities at or above it."""
    return 1 - np.searchsorted(np.sort(probabilities), candidates, "left") / len(probabilities)


def _clamp(threshold: float) -> float:
    return min(max(threshold, 1e-6), 1 - 1e-6)


def _check_target(target: float, rule: str) -> None:
    if not 0 < target < 1:
        raise ValueError(f"{rule}: target is {target}; it is a share between 0 and 1")
