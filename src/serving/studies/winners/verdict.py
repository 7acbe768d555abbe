"""Who wins: the lowest mean over the seeds, with ties where the next is within a margin or where seeds disagree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf, sqrt
from statistics import fmean, stdev

from serving.studies.capacity.search import STUDENT_T
from serving.studies.winners.contest import States

NONE = "none"
"""In place of a winner, where no contender keeps a promise."""
TIE = " = "


@dataclass(frozen=True)
class Verdict:
    """`best` first, then those that tie with it; none: no contender keeps the promise."""

    best: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return TIE.join(self.best) or NONE

    def differs(self, other: "Verdict") -> bool:
        """True if no contender is among the best of both."""
        return not set(self.best) & set(other.best)


def fastest(states: Mapping[str, States], margin: float) -> Verdict:
    """By seconds a token, end to end."""
    return winner({name: [one.mean_s_per_token for one in own] for name, own in states.items()}, margin)


def cheapest(states: Mapping[str, States], margin: float) -> Verdict:
    """By the cloud's busy seconds a token."""
    return winner({name: [one.busy_s_per_token for one in own] for name, own in states.items()}, margin)


def cheapest_in_time(states: Mapping[str, States], tokens_per_s: float, most_late: float, margin: float) -> Verdict:
    """The cheapest of those that answer all but the share `most_late` at this speed."""
    kept = {
        name: own for name, own in states.items() if fmean(one.late_share(tokens_per_s) for one in own) <= most_late
    }
    return cheapest(kept, margin)


def winner(values: Mapping[str, Sequence[float]], margin: float) -> Verdict:
    """The contender of the lowest mean, and those that tie with it; `values` are by seed, the same for all.

    The next ties if its mean ratio to the best over the seeds is below 1 + `margin`, or if the ratio's interval (95 %,
    Student's t over the seeds) has 1 in it.
    """
    if not values:
        return Verdict()
    ranked = sorted(values, key=lambda name: fmean(values[name]))
    first = ranked[0]
    return Verdict((first, *(name for name in ranked[1:] if _ties(values[name], values[first], margin))))


def _ties(values: Sequence[float], best: Sequence[float], margin: float) -> bool:
    low, mean, _ = ratio_interval(values, best)
    return mean < 1 + margin or low <= 1


def ratio_interval(values: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """(low, mean, high) of the ratio of two contenders by seed; one seed has no interval, and an infinite mean none."""
    ratios = [_ratio(a, b) for a, b in zip(values, others, strict=True)]
    mean = fmean(ratios)
    if len(ratios) < 2 or isinf(mean):
        return mean, mean, mean
    half = STUDENT_T[len(ratios) - 2] * stdev(ratios) / sqrt(len(ratios))
    return mean - half, mean, mean + half


def _ratio(value: float, other: float) -> float:
    """Two contenders that cost nothing are equal."""
    if value == other:
        return 1.0
    return value / other if other else inf
