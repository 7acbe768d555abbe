"""P-values of paired differences, the error of a mean, and percentiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from statistics import variance
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SIGNS_AT_ONCE = 1 << 20
BOOTSTRAP_SEED = 0
"""The seed of resampling: the same records give the same interval and p-value."""
SIGNIFICANCE = 0.05
"""A p-value below it, adjusted for all tests of its family, is significant."""


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean and the bounds of its confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedSums:
    """Two jobs on the same prompts: sums [prompts, k] of each; `combine` of their totals is the metric."""

    ours: NDArray[np.float64]
    baseline: NDArray[np.float64]
    combine: Callable[..., Any]


def paired_p_values(tests: Sequence[PairedSums], *, seed: int, permutations: int = 9999) -> list[float]:
    """Two-sided p-values of the differences between two jobs on the same prompts: paired permutation tests.

    Each permutation swaps the two jobs' sums of a prompt, or does not, with equal chances: four prompts can give no
    p-value below 1/8. Tests on as many prompts get the same permutations, so a test's p-value does not depend on the
    others. Source: Noreen, Computer-Intensive Methods for Testing Hypotheses, 1989.
    """
    found = [1.0] * len(tests)
    for size in {len(test.ours) for test in tests}:
        places = [place for place, test in enumerate(tests) if len(test.ours) == size]
        together = _p_values([tests[place] for place in places], seed, permutations)
        for place, p_value in zip(places, together, strict=True):
            found[place] = p_value
    return found


def _p_values(tests: Sequence[PairedSums], seed: int, permutations: int) -> list[float]:
    """Of tests on equally many prompts."""
    import numpy as np

    rng, num_prompts = np.random.default_rng(seed), len(tests[0].ours)
    rows, extreme = max(1, _SIGNS_AT_ONCE // num_prompts), [0] * len(tests)
    for done in range(0, permutations, rows):
        drawn = rng.integers(2, size=(min(rows, permutations - done), num_prompts), dtype=np.int8)
        signs = 2 * drawn.astype(np.float64) - 1
        extreme = [before + _num_extreme(test, signs) for before, test in zip(extreme, tests, strict=True)]
    return [(1 + one) / (1 + permutations) for one in extreme]


def _num_extreme(test: PairedSums, signs: NDArray[np.float64]) -> int:
    """How many of the permutations `signs` [permutations, prompts] differ at least as much as the jobs do."""
    import numpy as np

    middle, half = (test.ours + test.baseline).sum(axis=0) / 2, (test.ours - test.baseline) / 2
    with np.errstate(all="ignore"):
        values = [test.combine(*sums.sum(axis=0)) for sums in (test.ours, test.baseline)]
        limit = abs(values[0] - values[1]) - 1e-12 * (abs(values[0]) + abs(values[1]))
        shift = signs @ half
        found = np.abs(test.combine(*(middle + shift).T) - test.combine(*(middle - shift).T))
    return int(np.count_nonzero(~(found < limit)))


@dataclass(frozen=True)
class MeanError:
    """How far a mean over a few replicates of many prompts may be from the truth.

    prompts    standard deviation of what the choice of prompts makes: a normal part
    seeds      standard error of what differs between the replicates: a part of Student's t with one degree less than
               there are, since the spread of few may be small by chance

    The sum of both is what Fisher gives means of unknown variances (The Fiducial Argument in Statistical Inference,
    1935); it errs on the safe side.
    """

    prompts: float
    seeds: float
    replicates: int

    @classmethod
    def of(cls, values: Sequence[float], standard_error: float) -> MeanError:
        """The error of a mean with one value a replicate; `standard_error` covers both seeds and prompts."""
        seeds = sqrt(variance(values) / len(values)) if len(values) > 1 else 0.0
        return cls(sqrt(max(0.0, standard_error**2 - seeds**2)), seeds, len(values))

    def chance_above(self, distance: float) -> float:
        """The probability that the error is greater than `distance`."""
        import numpy as np
        from scipy.special import ndtr, stdtr

        if not self.seeds:
            return float(ndtr(-distance / self.prompts)) if self.prompts else float(distance < 0)
        at = np.linspace(-_NORMAL_END, _NORMAL_END, _NORMAL_POINTS)
        weights = np.exp(-(at**2) / 2)
        tails = stdtr(self.replicates - 1, (self.prompts * at - distance) / self.seeds)
        return float(weights @ tails / weights.sum())

    def half_width(self, level: float = 0.95) -> float:
        """What the error exceeds on either side together with probability 1 - `level`."""
        return _half_width(self, level)


_NORMAL_END, _NORMAL_POINTS = 8.0, 401
_HALVINGS = 24


@lru_cache(maxsize=4096)
def _half_width(error: MeanError, level: float) -> float:
    from scipy.special import ndtri, stdtrit

    share = (1 - level) / 2
    low, high = 0.0, error.prompts * float(ndtri(1 - share / 2))
    if error.seeds:
        high += error.seeds * float(stdtrit(error.replicates - 1, 1 - share / 2))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if error.chance_above(middle) > share else (low, middle)
    return high


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests, adjusted so that all of them together err as seldom as one would.

    Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.
    """
    adjusted, greatest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        greatest = max(greatest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = greatest
    return adjusted


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles interpolate linearly between the two nearest values."""

    mean: float
    median: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Percentiles | None:
        """The percentiles of the known values; None without any."""
        ranked = sorted(value for value in values if value is not None)
        if not ranked:
            return None
        return cls(sum(ranked) / len(ranked), *(percentile(ranked, share) for share in (0.5, 0.9, 0.99)))


def percentile(ranked: list[float], share: float) -> float:
    """The value below which a `share` of the ascending `ranked` lies."""
    place = share * (len(ranked) - 1)
    low = int(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)
