"""Borders: where, along one axis, one contender stops to be faster than another; by bisection over simulations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean

from serving.studies.winners.contest import Contest, States
from serving.studies.winners.known_states import KnownStates
from serving.studies.winners.place import Axis, Place

FINEST_STEP = 0.01
"""Of an axis that is no whole number, in milliseconds: a border at 0 has no share that it could be told to."""
Advantage = Callable[[float], Sequence[float]]
"""By seed, the logarithm of one contender's seconds a token over another's, at a place of the axis; below 0: faster."""


@dataclass(frozen=True)
class Border:
    """Where the first contender stops to be faster, by seed; None: it is faster nowhere, or everywhere.

    `low` and `high` bound the bisection.
    """

    by_seed: tuple[float, ...] | None
    low: float
    high: float
    faster_at_low: bool

    @property
    def text(self) -> str:
        if self.by_seed is None:
            return f"beyond {self.high:g}" if self.faster_at_low else f"below {self.low:g}"
        return f"{self.low:g} to {self.high:g}"


def find_border(advantage: Advantage, low: float, high: float, resolution: float, whole: bool = False) -> Border:
    """Bisects [low, high] until it is at most `resolution` of its upper end, or `FINEST_STEP`, or 1 if only `whole`
    numbers are allowed.

    Each seed's border is interpolated between the last two places.
    """
    at_low, at_high = advantage(low), advantage(high)
    faster = fmean(at_low) < 0
    if (fmean(at_high) < 0) == faster:
        return Border(None, low, high, faster)
    while high - low > max(resolution * high, 1.0 if whole else FINEST_STEP):
        middle = float(round((low + high) / 2)) if whole else (low + high) / 2
        found = advantage(middle)
        if (fmean(found) < 0) == faster:
            low, at_low = middle, found
        else:
            high, at_high = middle, found
    crossings = tuple(_crossing(a, b, low, high) for a, b in zip(at_low, at_high, strict=True))
    return Border(crossings, low, high, faster)


def _crossing(at_low: float, at_high: float, low: float, high: float) -> float:
    """Where the line through both values is 0; the nearer end, where a seed's values have one sign."""
    if at_low * at_high >= 0:
        return low if abs(at_low) < abs(at_high) else high
    return low + (high - low) * at_low / (at_low - at_high)


@dataclass(frozen=True)
class Rivals:
    """Two contenders of a contest, by seconds a token."""

    contest: Contest
    known: KnownStates
    first: str
    second: str

    def advantage(self, place: Place, axis: Axis) -> Advantage:
        """Along this axis through the place."""

        def ratio(value: float) -> Sequence[float]:
            here = place.moved(axis, value)
            a, b = (self._states(name, here) for name in (self.first, self.second))
            return [log(x.mean_s_per_token / y.mean_s_per_token) for x, y in zip(a, b, strict=True)]

        return ratio

    def _states(self, name: str, place: Place) -> States:
        return self.known(self.contest.simulation(name, place))
