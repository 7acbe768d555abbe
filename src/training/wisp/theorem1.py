"""WISP's Theorem 1 as an experiment: do fewer false alarms mean less waste, over predictors that are really trained?

`W = (K - L)+`, K the tokens before the first predicted rejection (Eq. 25 and 26). The theorem's proof (appendix A)
compares upper bounds (Eq. 31), not expectations, so predictors may contradict it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from serving.progress import Progress, silent
from training.fitting.cluster_statistics import ClusterValues, clustered_ratio, spearman
from training.fitting.trainer import Trainer
from training.wisp.families import PredictorFamily, check_several, fit_predictor
from training.wisp.rules import threshold_at_recall
from training.wisp.samples import SampleSplit, TokenSamples
from training.wisp.trace import DraftWindows, Flags, Floats, Ints

RESAMPLES = 1000
EMPTY_DRAFTS, NONEMPTY_DRAFTS = "pairs", "pairs, one token at least"
"""Names of both readings of where drafting stops: empty drafts are allowed (Eq. 25), or not, as it is served."""
MetricRow = dict[str, ClusterValues | float]


@dataclass(frozen=True, eq=False)
class OperatingPoint:
    """A predictor at one threshold, on w windows."""

    predictor: str
    recall: float
    """The recall on validation that the threshold was set for."""
    wasted_tokens: Ints
    """(w,) W of Eq. 26."""
    false_alarm: Flags
    """(w,) True if the first rejected token was predicted accepted; False if none was rejected."""


@dataclass(frozen=True, eq=False)
class HeldOutWindows:
    """Held-out windows of up to `k` tokens."""

    windows: DraftWindows
    k: int
    rejected: Flags
    """(w,) True if a token was rejected (R <= k)."""
    session_index: Ints
    """(w,) from 0."""

    @classmethod
    def from_windows(cls, windows: DraftWindows, k: int) -> "HeldOutWindows":
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
        """The predictor at `threshold`; `probabilities` (t,) are of the windows' tokens.

        With `allow_empty`, drafting may stop before its first token (Eq. 25).
        """
        windows = self.windows
        passed = probabilities >= threshold
        first = windows.lengths.copy()
        np.minimum.at(first, windows.window_index[~passed], windows.position[~passed])
        drafted = first if allow_empty else np.maximum(first, np.minimum(windows.lengths, 1))
        return OperatingPoint(
            predictor, recall, np.maximum(drafted - windows.accepted_lengths, 0), self._false_alarms(passed)
        )

    def _false_alarms(self, passed: Flags) -> Flags:
        """At the first rejected token only, whether or not drafting gets that far (Eq. 30)."""
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
    """Ordered pairs (a, b) of p points; every array has the shape (p, p)."""

    different_predictors: Flags
    """a and b are different predictors."""
    lower_fpr: Flags
    """a has the lower false-alarm rate."""
    lower_fpr_everywhere: Flags
    """a's rate is lower or equal at every position, and lower at one or more (Eq. 32)."""
    more_waste: Flags
    """a wastes more; with a lower rate this contradicts the theorem."""
    significant: Flags
    """Lower rate and more waste are both outside the 95 % intervals of resampled sessions."""

    def count(self, premise: Flags) -> dict[str, float]:
        """Counts of pairs for which `premise` holds, and of those that contradict the theorem."""
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
    """Pairs with significantly fewer false alarms and more waste: 95 % intervals of paired session bootstraps."""
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


@dataclass(frozen=True)
class TheoremResult:
    """The points of both readings, in the same order, on `windows`."""

    windows: HeldOutWindows
    points: Mapping[str, list[OperatingPoint]]
    pairs: Mapping[str, PointPairs]


def measure_theorem(
    samples: TokenSamples,
    families: Mapping[str, PredictorFamily],
    seeds: Sequence[int],
    recalls: Sequence[float],
    k: int,
    trainer: Trainer,
    progress: Progress,
) -> TheoremResult:
    """Trains every predictor and applies it to the windows of the test part."""
    jobs = [
        (label if len(seeds) == 1 else f"{label}, seed {s}", one, s) for label, one in families.items() for s in seeds
    ]
    check_several(len(jobs))
    split = samples.split(seeds[0])
    held = HeldOutWindows.from_windows(split.test.windows, k)
    points: dict[str, list[OperatingPoint]] = {EMPTY_DRAFTS: [], NONEMPTY_DRAFTS: []}
    for i, (label, family, seed) in enumerate(jobs):
        for reading, own in _operating_points(held, split, label, family, seed, recalls, trainer).items():
            points[reading] += own
        progress(i + 1, len(jobs), label)
    return TheoremResult(held, points, {reading: compare_pairs(held, own, seeds[0]) for reading, own in points.items()})


def _operating_points(
    windows: HeldOutWindows,
    split: SampleSplit,
    label: str,
    family: PredictorFamily,
    seed: int,
    recalls: Sequence[float],
    trainer: Trainer,
) -> dict[str, list[OperatingPoint]]:
    found = fit_predictor(family, split, seed, trainer, silent)
    known, chances = found.probabilities(split.validation.features), found.probabilities(windows.windows.features)
    thresholds = {at: threshold_at_recall(known, split.validation.accepted, at) for at in recalls}
    return {
        reading: [
            windows.operating_point(label, at, chances, threshold, reading == EMPTY_DRAFTS)
            for at, threshold in thresholds.items()
        ]
        for reading in (EMPTY_DRAFTS, NONEMPTY_DRAFTS)
    }


def rows(found: TheoremResult) -> dict[str, dict[str, MetricRow]]:
    """By predictor and recall: FPR, waste in both readings and the bound of Eq. 31; and the counts of pairs."""
    table: dict[str, dict[str, MetricRow]] = {}
    for point, served in zip(found.points[EMPTY_DRAFTS], found.points[NONEMPTY_DRAFTS], strict=True):
        table.setdefault(point.predictor, {})[f"recall {point.recall:g}"] = _row(found.windows, point, served)
    return table | {reading: _pair_rows(found, reading) for reading in found.points}


def metrics(found: TheoremResult) -> dict[str, float]:
    """All numbers about pairs, as `reading/premise/name`."""
    return {
        f"{reading}/{premise}/{name}": cell
        for reading in found.points
        for premise, cells in _pair_rows(found, reading).items()
        for name, cell in cells.items()
        if isinstance(cell, float)
    }


def _row(windows: HeldOutWindows, point: OperatingPoint, nonempty_point: OperatingPoint) -> MetricRow:
    whole = np.ones(len(windows.windows))
    return {
        "fpr": _ratio(windows, point.false_alarm.astype(np.float64), windows.rejected.astype(np.float64)),
        "waste": _ratio(windows, point.wasted_tokens.astype(np.float64), whole),
        "waste_at_least_one_token": _ratio(windows, nonempty_point.wasted_tokens.astype(np.float64), whole),
        "bound": windows.waste_bound(point),
    }


def _ratio(windows: HeldOutWindows, numerator: Floats, denominator: Floats) -> ClusterValues:
    return clustered_ratio(numerator, denominator, windows.session_index, windows.num_sessions)


def _pair_rows(found: TheoremResult, reading: str) -> dict[str, MetricRow]:
    """Counts of pairs by premise: lower overall FPR, or lower at every position; all pairs or different predictors."""
    own, points = found.pairs[reading], found.points[reading]
    alarms, waste = fpr_and_waste(found.windows, points)
    beyond = sum(w > found.windows.waste_bound(point) + 1e-12 for w, point in zip(waste, points, strict=True))
    whole: MetricRow = {
        "points": float(len(points)),
        "spearman": spearman(alarms, waste),
        "bound_violations": float(beyond),
    }
    return {
        "FPR lower": {**own.count(own.lower_fpr), **whole},
        "FPR lower, other predictor": {**own.count(own.lower_fpr & own.different_predictors)},
        "Eq. 32": {**own.count(own.lower_fpr_everywhere)},
        "Eq. 32, other predictor": {**own.count(own.lower_fpr_everywhere & own.different_predictors)},
    }
