"""Bootstrap intervals of a mean, p-values of paired differences, and percentiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import variance
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_INDICES_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean and the bounds of its confidence interval."""

    mean: float
    low: float
    high: float


def mean_interval(
    values: Sequence[float], *, seed: int, level: float = 0.95, resamples: int = 2000
) -> ConfidenceInterval:
    """The mean of `values` with its percentile interval; one seed gives one interval.

    Raises ValueError for no values, values that are not finite, a level outside (0, 1) or fewer than 100 resamples.
    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.
    """
    import numpy as np

    sample = _validated(values, level, resamples)
    means = _resampled_means(sample, np.random.default_rng(seed), resamples)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return ConfidenceInterval(float(sample.mean()), float(low), float(high))


def clustered_interval(clusters: Sequence[Sequence[float]], *, seed: int, resamples: int = 2000) -> ConfidenceInterval:
    """The mean of all values with its 95 % percentile interval, whole clusters drawn: answers to a prompt go together.

    Raises ValueError without a value.
    """
    import numpy as np

    if not any(clusters):
        raise ValueError("a mean needs one value at least")
    totals = np.array([(sum(own), len(own)) for own in clusters if own], dtype=np.float64)
    n = len(totals)
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    sums = counts @ totals
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [0.025, 0.975])
    whole = totals.sum(axis=0)
    return ConfidenceInterval(float(whole[0] / whole[1]), float(low), float(high))


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
    rows, extreme = max(1, _INDICES_AT_ONCE // num_prompts), [0] * len(tests)
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


def degrees_of_freedom(values: Sequence[float], standard_error: float) -> float:
    """Those of the standard error of a mean over replicates with the same or other prompts; `values`: one a replicate.

    What lies between R replicates has R - 1, what lies between prompts so many that they do not matter. Infinite for
    one replicate, and for replicates that are equal. Source: Satterthwaite, An Approximate Distribution of Estimates of
    Variance Components, 1946.
    """
    few = len(values) - 1
    between = variance(values) / len(values) if few > 0 else 0.0
    return max(few, few * (standard_error**2 / between) ** 2) if between else inf


def student_cdf(t: float, freedom: float) -> float:
    """The probability that Student's t is at most `t`; with infinite freedom that of the normal distribution."""
    from scipy.special import ndtr, stdtr

    return float(ndtr(t) if freedom == inf else stdtr(freedom, t))


def student_interval(mean: float, standard_error: float, freedom: float, level: float = 0.95) -> ConfidenceInterval:
    """Student's t times the standard error on both sides of the mean; `freedom` is finite."""
    from scipy.special import stdtrit

    half = standard_error * float(stdtrit(freedom, (1 + level) / 2))
    return ConfidenceInterval(mean, mean - half, mean + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests, adjusted so that all of them together err as seldom as one would.

    Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.
    """
    adjusted, greatest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        greatest = max(greatest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = greatest
    return adjusted


def _validated(values: Sequence[float], level: float, resamples: int) -> NDArray[np.float64]:
    import numpy as np

    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not sample.size or not np.isfinite(sample).all():
        raise ValueError(f"a bootstrap needs finite values, at least one, got {sample.size} of shape {sample.shape}")
    if not 0 < level < 1 or resamples < 100:
        raise ValueError(f"a bootstrap needs 0 < level < 1 and 100 resamples or more, got {level} and {resamples}")
    return sample


def _resampled_means(sample: NDArray[np.float64], rng: np.random.Generator, resamples: int) -> NDArray[np.float64]:
    import numpy as np

    rows = max(1, _INDICES_AT_ONCE // sample.size)
    parts = [
        sample[rng.integers(sample.size, size=(min(rows, resamples - done), sample.size))].mean(axis=1)
        for done in range(0, resamples, rows)
    ]
    return np.concatenate(parts)


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
