"""Wasted drafts against false alarms at the first rejection: what WISP's Theorem 1 says, and what is measured.

`W = (K - L)+`, K the tokens before the first predicted rejection (Eq. 25 and 26). The theorem's proof (appendix A)
compares upper bounds (Eq. 31), not expectations, so that predictors may contradict it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from training.wisp.windows import DraftWindows, Flags, Floats, Ints

RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class OperatingPoint:
    """A predictor at a threshold, on w windows; `empty` lets drafting stop before its first token (Eq. 25)."""

    predictor: str
    recall: float
    """What the threshold was set for, on validation."""
    wasted_tokens: Ints
    """(w,) W of Eq. 26."""
    false_alarm: Flags
    """(w,) The first rejected token was predicted accepted; False where none was rejected."""


@dataclass(frozen=True, eq=False)
class HeldOutWindows:
    """What every predictor is judged on: windows cut to `k` tokens."""

    windows: DraftWindows
    k: int
    rejected: Flags
    """(w,) R <= k: a token was rejected."""
    session_index: Ints
    """(w,) Numbered from 0."""

    @classmethod
    def from_windows(cls, windows: DraftWindows, k: int) -> HeldOutWindows:
        """Raises ValueError for windows that are longer than `k`."""
        if windows.lengths.max(initial=0) > k:
            raise ValueError(
                f"there are windows of {windows.lengths.max()} tokens, and k is {k}; give the k that they were "
                "drafted with"
            )
        session = np.unique(windows.session, return_inverse=True)[1].astype(np.int64)
        return cls(windows, k, windows.accepted_lengths < windows.lengths, session)

    @property
    def num_sessions(self) -> int:
        return int(self.session_index.max()) + 1

    def operating_point(
        self, predictor: str, recall: float, probabilities: Floats, threshold: float, allow_empty: bool
    ) -> OperatingPoint:
        """`probabilities` of the windows' tokens; shape (t,)."""
        windows = self.windows
        passed = probabilities >= threshold
        first = windows.lengths.copy()
        np.minimum.at(first, windows.window_index[~passed], windows.position[~passed])
        drafted = first if allow_empty else np.maximum(first, np.minimum(windows.lengths, 1))
        return OperatingPoint(
            predictor, recall, np.maximum(drafted - windows.accepted_lengths, 0), self._false_alarms(passed)
        )

    def _false_alarms(self, passed: Flags) -> Flags:
        """At R alone, whether drafting got so far or not (Eq. 30)."""
        windows = self.windows
        found = np.zeros(len(windows), np.bool_)
        at = windows.position == windows.accepted_lengths[windows.window_index]
        found[windows.window_index[at]] = passed[at]
        return found

    def fpr_by_position(self, point: OperatingPoint) -> Floats:
        """FP(r) of Eq. 30 for r = 1..k; NaN where no window is first rejected there. Shape (k,)."""
        first = self.windows.accepted_lengths[self.rejected]
        with np.errstate(invalid="ignore"):
            return np.asarray(
                np.bincount(first, point.false_alarm[self.rejected], self.k) / np.bincount(first, minlength=self.k)
            )

    def waste_bound(self, point: OperatingPoint) -> float:
        """The right side of Eq. 31."""
        return float(np.where(point.false_alarm, self.k - self.windows.accepted_lengths, 0).mean())


@dataclass(frozen=True, eq=False)
class PointPairs:
    """Ordered pairs of p points (a, b); every array is of shape (p, p)."""

    different_predictors: Flags
    """a and b are different predictors."""
    lower_fpr: Flags
    """a has the lower false-alarm rate."""
    lower_fpr_everywhere: Flags
    """... at every position, and somewhere a lower one (Eq. 32)."""
    more_waste: Flags
    """a wastes more: together with the former, a contradiction."""
    significant: Flags
    """Both in 95 % intervals of the differences, sessions resampled."""

    def count(self, premise: Flags) -> dict[str, float]:
        """Pairs for which the premise holds, and those of them that contradict the theorem."""
        wrong = premise & self.more_waste
        return {
            "pairs": float(premise.sum()),
            "contradictions": float(wrong.sum()),
            "share": float(wrong.sum() / max(1, premise.sum())),
            "significant_contradictions": float((wrong & self.significant).sum()),
        }


def compare_pairs(windows: HeldOutWindows, points: list[OperatingPoint], seed: int) -> PointPairs:
    """All ordered pairs of the points."""
    alarms, waste = fpr_and_waste(windows, points)
    positions = np.array([windows.fpr_by_position(point) for point in points])
    seen = positions[:, ~np.isnan(positions[0])]
    below = (seen[:, None] <= seen[None]).all(-1) & (seen[:, None] < seen[None]).any(-1)
    names = np.array([point.predictor for point in points])
    return PointPairs(
        np.asarray(names[:, None] != names[None]),
        alarms[:, None] < alarms[None],
        np.asarray(below),
        waste[:, None] > waste[None],
        _significant_pairs(windows, points, seed),
    )


def fpr_and_waste(windows: HeldOutWindows, points: list[OperatingPoint]) -> tuple[Floats, Floats]:
    """FPR at the first rejection, and E[W], of each point; shapes (p,)."""
    alarms = np.array([point.false_alarm[windows.rejected].mean() for point in points])
    return alarms, np.array([point.wasted_tokens.mean() for point in points])


def _significant_pairs(windows: HeldOutWindows, points: list[OperatingPoint], seed: int) -> Flags:
    """Fewer alarms and yet more waste in 95 % intervals, each of the differences of the same resampled sessions."""
    n = windows.num_sessions
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), RESAMPLES).astype(np.float64)

    def resampled(values: list[Floats], among: Floats) -> Floats:
        sums = np.array([np.bincount(windows.session_index, value, n) for value in values])
        return np.asarray((counts @ sums.T) / (counts @ np.bincount(windows.session_index, among, n))[:, None])

    alarms = resampled([point.false_alarm.astype(np.float64) for point in points], windows.rejected.astype(np.float64))
    waste = resampled([point.wasted_tokens.astype(np.float64) for point in points], np.ones(len(windows.session_index)))
    found = np.zeros((len(points), len(points)), np.bool_)
    for a in range(len(points)):
        fewer = np.quantile(alarms[:, [a]] - alarms, 0.975, axis=0) < 0
        more = np.quantile(waste[:, [a]] - waste, 0.025, axis=0) > 0
        found[a] = fewer & more
    return found
