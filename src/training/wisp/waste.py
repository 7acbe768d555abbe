"""Wasted drafts against false alarms at the first rejection: what WISP's Theorem 1 says, and what is measured.

`W = (K - L)+`, K the tokens before the first predicted rejection (Eq. 25 and 26). The theorem's proof (appendix A)
compares upper bounds (Eq. 31), not expectations, so that predictors may contradict it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from training.wisp.windows import Flags, Floats, Ints, Windows

RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class Point:
    """A predictor at a threshold, on w windows; `empty` lets drafting stop before its first token (Eq. 25)."""

    predictor: str
    recall: float
    """What the threshold was set for, on validation."""
    wasted: Ints
    """(w,) W of Eq. 26."""
    alarm: Flags
    """(w,) The first rejected token was predicted accepted; False where none was rejected."""


@dataclass(frozen=True, eq=False)
class Held:
    """What every predictor is judged on: windows cut to `k` tokens."""

    windows: Windows
    k: int
    rejected: Flags
    """(w,) R <= k: a token was rejected."""
    session: Ints
    """(w,) Numbered from 0."""

    @classmethod
    def of(cls, windows: Windows, k: int) -> Held:
        """Raises ValueError for windows that are longer than `k`."""
        if windows.drafted.max(initial=0) > k:
            raise ValueError(
                f"there are windows of {windows.drafted.max()} tokens, and k is {k}; give the k that they were "
                "drafted with"
            )
        session = np.unique(windows.session, return_inverse=True)[1].astype(np.int64)
        return cls(windows, k, windows.accepted < windows.drafted, session)

    @property
    def sessions(self) -> int:
        return int(self.session.max()) + 1

    def point(self, predictor: str, recall: float, chances: Floats, threshold: float, empty: bool) -> Point:
        """`chances` of the windows' tokens; shape (t,)."""
        windows = self.windows
        passed = chances >= threshold
        first = windows.drafted.copy()
        np.minimum.at(first, windows.window[~passed], windows.position[~passed])
        drafted = first if empty else np.maximum(first, np.minimum(windows.drafted, 1))
        return Point(predictor, recall, np.maximum(drafted - windows.accepted, 0), self._alarms(passed))

    def _alarms(self, passed: Flags) -> Flags:
        """At R alone, whether drafting got so far or not (Eq. 30)."""
        windows = self.windows
        found = np.zeros(len(windows), np.bool_)
        at = windows.position == windows.accepted[windows.window]
        found[windows.window[at]] = passed[at]
        return found

    def by_position(self, point: Point) -> Floats:
        """FP(r) of Eq. 30 for r = 1..k; NaN where no window is first rejected there. Shape (k,)."""
        first = self.windows.accepted[self.rejected]
        with np.errstate(invalid="ignore"):
            return np.asarray(
                np.bincount(first, point.alarm[self.rejected], self.k) / np.bincount(first, minlength=self.k)
            )

    def bound(self, point: Point) -> float:
        """The right side of Eq. 31."""
        return float(np.where(point.alarm, self.k - self.windows.accepted, 0).mean())


@dataclass(frozen=True, eq=False)
class Pairs:
    """Ordered pairs of p points (a, b); every array is of shape (p, p)."""

    apart: Flags
    """a and b are different predictors."""
    fewer: Flags
    """a has the lower false-alarm rate."""
    everywhere: Flags
    """... at every position, and somewhere a lower one (Eq. 32)."""
    wasteful: Flags
    """a wastes more: together with the former, a contradiction."""
    surely: Flags
    """Both in 95 % intervals of the differences, sessions resampled."""

    def count(self, premise: Flags) -> dict[str, float]:
        """Pairs for which the premise holds, and those of them that contradict the theorem."""
        wrong = premise & self.wasteful
        return {
            "pairs": float(premise.sum()),
            "contradicting": float(wrong.sum()),
            "share": float(wrong.sum() / max(1, premise.sum())),
            "surely": float((wrong & self.surely).sum()),
        }


def pairs(held: Held, points: list[Point], seed: int) -> Pairs:
    """All ordered pairs of the points."""
    alarms, waste = rates(held, points)
    positions = np.array([held.by_position(point) for point in points])
    seen = positions[:, ~np.isnan(positions[0])]
    below = (seen[:, None] <= seen[None]).all(-1) & (seen[:, None] < seen[None]).any(-1)
    names = np.array([point.predictor for point in points])
    return Pairs(
        np.asarray(names[:, None] != names[None]),
        alarms[:, None] < alarms[None],
        np.asarray(below),
        waste[:, None] > waste[None],
        _surely(held, points, seed),
    )


def rates(held: Held, points: list[Point]) -> tuple[Floats, Floats]:
    """FPR at the first rejection, and E[W], of each point; shapes (p,)."""
    alarms = np.array([point.alarm[held.rejected].mean() for point in points])
    return alarms, np.array([point.wasted.mean() for point in points])


def _surely(held: Held, points: list[Point], seed: int) -> Flags:
    """Fewer alarms and yet more waste in 95 % intervals, each of the differences of the same resampled sessions."""
    n = held.sessions
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), RESAMPLES).astype(np.float64)

    def resampled(values: list[Floats], among: Floats) -> Floats:
        sums = np.array([np.bincount(held.session, value, n) for value in values])
        return np.asarray((counts @ sums.T) / (counts @ np.bincount(held.session, among, n))[:, None])

    alarms = resampled([point.alarm.astype(np.float64) for point in points], held.rejected.astype(np.float64))
    waste = resampled([point.wasted.astype(np.float64) for point in points], np.ones(len(held.session)))
    found = np.zeros((len(points), len(points)), np.bool_)
    for a in range(len(points)):
        fewer = np.quantile(alarms[:, [a]] - alarms, 0.975, axis=0) < 0
        more = np.quantile(waste[:, [a]] - waste, 0.025, axis=0) > 0
        found[a] = fewer & more
    return found
