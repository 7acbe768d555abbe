"""A number of a row with its uncertainty: its value in each replicate, and bootstrap resamples.

The mean over replicates (seeds) is shown. A resample draws replicates with replacement, then prompts, so that an
interval covers both. The variance between R replicates comes out too small by R / (R - 1), which is put right (Davison
and Hinkley, Bootstrap Methods and their Application, 1997, section 3.8), and few replicates make it uncertain: where
several differ, an interval is by Student's t (`statistics.MeanError`). Where replicates have prompts of their own, both
parts count what prompts make: such an interval errs on the safe side. All rows share the resamples, and replicates
with the same prompts share theirs, so that the difference of two rows, resample by resample, is a paired bootstrap
(Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapters 8 and 13).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pipeline.report.prompt_sums import PromptSums
from pipeline.report.statistics import BOOTSTRAP_SEED, ConfidenceInterval, MeanError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NUM_RESAMPLES = 2000
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Resamples:
    """Resamples of one replicate's value; two of them pair if their `prompts` are the same."""

    values: NDArray[np.float64]
    prompts: tuple[str, ...]


@dataclass(frozen=True)
class Estimate:
    """`values` by replicate, with `resamples` of each, or none if the metric cannot be resampled."""

    values: Mapping[str, float]
    resamples: Mapping[str, Resamples] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """The mean over replicates."""
        return sum(self.values.values()) / len(self.values)

    @property
    def seed_range(self) -> tuple[float, float] | None:
        """The least and the greatest value of a replicate; None for a single replicate."""
        return (min(self.values.values()), max(self.values.values())) if len(self.values) > 1 else None

    @property
    def interval(self) -> ConfidenceInterval | None:
        """95 % interval of the mean over replicates: by Student's t where several differ, else percentiles of the
        resamples; None if one has no resamples.
        """
        import numpy as np

        known = self._resampled_means()
        if not known.size:
            return None
        if (error := self.mean_error) and error.seeds:
            half = error.half_width(_CONFIDENCE)
            return ConfidenceInterval(self.value, self.value - half, self.value + half)
        low, high = np.quantile(known, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
        return ConfidenceInterval(self.value, float(low), float(high))

    @property
    def mean_error(self) -> MeanError | None:
        """None without a standard error."""
        error = self.standard_error
        return None if error is None else MeanError.of(list(self.values.values()), error)

    @property
    def standard_error(self) -> float | None:
        """The standard deviation of the resampled means; None if a replicate has no resamples."""
        known = self._resampled_means()
        return float(known.std(ddof=1)) if known.size > 1 else None

    @property
    def num_prompts(self) -> int:
        """The number of prompts that are resampled in the replicate with the most; 0 without resamples."""
        return max((len(draws.prompts) for draws in self.resamples.values()), default=0)

    def _resampled_means(self) -> NDArray[np.float64]:
        """The finite means of resampled replicates with resampled prompts; empty if a replicate has no resamples."""
        import numpy as np

        if not self.resamples or self.resamples.keys() != self.values.keys():
            return np.empty(0)
        values = np.array(list(self.values.values()))
        shares = _replicate_counts(len(values)) / len(values)
        draws = np.stack([self.resamples[key].values for key in self.values], axis=1)
        within = (shares * (draws - values)).sum(axis=1)
        between = shares @ values - values.mean()
        widened = between * sqrt(len(values) / (len(values) - 1)) if len(values) > 1 else between
        means = values.mean() + within + widened
        return np.asarray(means[np.isfinite(means)])

    def scaled(self, factor: float) -> Estimate:
        return self._map(lambda values: values * factor)

    def subtract(self, value: float) -> Estimate:
        return self._map(lambda values: values - value)

    def paired_difference(self, other: Estimate) -> Estimate | None:
        """The paired difference over the replicates that both have; None without any."""
        return self._combine(other, operator.sub)

    def paired_ratio(self, other: Estimate) -> Estimate | None:
        """The paired ratio over the replicates that both have; None without any, or if the other is 0 in one."""
        divides = can_divide(other.values[key] for key in self.values if key in other.values)
        return self._combine(other, operator.truediv) if divides else None

    def _map(self, change: Callable[[Any], Any]) -> Estimate:
        draws = {key: replace(draws, values=change(draws.values)) for key, draws in self.resamples.items()}
        return Estimate({key: change(value) for key, value in self.values.items()}, draws)

    def _combine(self, other: Estimate, combine: Callable[[Any, Any], Any]) -> Estimate | None:
        common = [key for key in self.values if key in other.values]
        if not common:
            return None
        values = {key: combine(self.values[key], other.values[key]) for key in common}
        return Estimate(values, self._combine_resamples(other, common, combine))

    def _combine_resamples(
        self, other: Estimate, common: Sequence[str], combine: Callable[[Any, Any], Any]
    ) -> dict[str, Resamples]:
        """Empty if the prompts of one replicate differ: an interval of the others would mislead."""
        import numpy as np

        pairs = [(key, self.resamples.get(key), other.resamples.get(key)) for key in common]
        with np.errstate(all="ignore"):
            paired = {
                key: Resamples(combine(mine.values, its.values), mine.prompts)
                for key, mine, its in pairs
                if mine and its and mine.prompts == its.prompts
            }
        return paired if len(paired) == len(common) else {}


def pool(estimates: Sequence[Estimate]) -> Estimate | None:
    """One estimate with the replicates of all; None without any."""
    if not estimates:
        return None
    values = {key: value for one in estimates for key, value in one.values.items()}
    return Estimate(values, {key: draws for one in estimates for key, draws in one.resamples.items()})


def can_divide(denominators: Iterable[float]) -> bool:
    """True if none is 0: the mean ratio of those that are left would be of replicates, or draws, that were chosen by
    their result.
    """
    return all(denominators)


def interval_text(known: Iterable[Estimate]) -> str:
    """How the intervals of these are made."""
    several = any(one.mean_error and one.mean_error.seeds for one in known)
    return "95 % interval, bootstrap over prompts" + (", Student's t over seeds" if several else "")


def estimate(value: float, replicate: str, sums: PromptSums | None) -> Estimate:
    """A job's value of a metric, with resamples where its sums are known."""
    import numpy as np

    if sums is None:
        return Estimate({replicate: value})
    with np.errstate(all="ignore"):
        values = sums.combine(*_resampled_sums(sums.sums, sums.prompts).T)
    return Estimate({replicate: value}, {replicate: Resamples(values, sums.prompts)})


def estimate_mean(values: Sequence[float], replicate: str = "") -> Estimate:
    """The mean of one value a prompt; rows with as many values pair, value by value. Raises ValueError without any."""
    import numpy as np

    if not values:
        raise ValueError("a mean needs one value at least")
    sums = np.column_stack([np.asarray(values, dtype=np.float64), np.ones(len(values))])
    prompts = tuple(map(str, range(len(values))))
    resampled = _resampled_sums(sums, prompts)
    return Estimate(
        {replicate: float(sums[:, 0].mean())}, {replicate: Resamples(resampled[:, 0] / resampled[:, 1], prompts)}
    )


def estimate_seeds(values: Mapping[str, float]) -> Estimate:
    """One number a replicate, of runs that have nothing in common: an interval covers the replicates alone."""
    import numpy as np

    if len(values) < 2:
        return Estimate(values)
    constant = {key: Resamples(np.full(NUM_RESAMPLES, value), (key,)) for key, value in values.items()}
    return Estimate(values, constant)


def _resampled_sums(sums: NDArray[np.float64], prompts: tuple[str, ...]) -> NDArray[np.float64]:
    """`[groups, k]` -> `[RESAMPLES, k]`: sums over groups drawn with replacement, the same for the same prompts."""
    return _prompt_counts(len(sums), prompts) @ sums


def prompt_counts(prompts: tuple[str, ...]) -> NDArray[np.float64]:
    """`[RESAMPLES, prompts]`: how often each resample draws each prompt, the same for the same prompts."""
    return _prompt_counts(len(prompts), prompts)


@lru_cache(maxsize=8)
def _prompt_counts(n: int, prompts: tuple[str, ...]) -> NDArray[np.float64]:
    return _resample_counts(n, "\n".join(prompts))


@lru_cache(maxsize=8)
def _replicate_counts(n: int) -> NDArray[np.float64]:
    return _resample_counts(n, "replicates")


def _resample_counts(n: int, purpose: str) -> NDArray[np.float64]:
    """`[RESAMPLES, n]`: how often each of `n` is drawn in `n` draws with replacement."""
    import numpy as np

    rng = np.random.default_rng([BOOTSTRAP_SEED, crc32(purpose.encode())])
    return rng.multinomial(n, np.full(n, 1 / n), size=NUM_RESAMPLES).astype(np.float64)
