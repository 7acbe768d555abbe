"""Capacity: the largest number of devices with an SLO violation rate of at most epsilon (WISP, Eq. 20)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import floor, sqrt
from statistics import fmean, stdev

from serving.studies.capacity.load_test import LoadTest, LoadTestResult
from serving.studies.capacity.slo_evaluation import CountLate
from serving.workload.slo import SloClass


def isotonic_regression(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to `values` in weighted squares, by pooling adjacent violators (Barlow et
    al., Statistical Inference under Order Restrictions, 1972).
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pool = value, weight, 1
        while pools and pools[-1][0] >= pool[0]:
            mean, mass, n = pools.pop()
            total = mass + pool[1]
            pool = (mean * mass + pool[0] * pool[1]) / total, total, n + pool[2]
        pools.append(pool)
    return [mean for mean, _, n in pools for _ in range(n)]


def isotonic_crossing(xs: Sequence[float], values: Sequence[float], weights: Sequence[float], level: float) -> float:
    """The largest x at which the isotonic regression of `values` is at most `level`, interpolated linearly; the first x
    if it never is, the last if it always is. `xs` increase strictly.
    """
    fitted = isotonic_regression(values, weights)
    over = next((i for i, value in enumerate(fitted) if value > level), len(fitted))
    if over in (0, len(fitted)):
        return xs[0] if over == 0 else xs[-1]
    a, b = fitted[over - 1], fitted[over]
    return xs[over - 1] + (xs[over] - xs[over - 1]) * (level - a) / (b - a)


Evaluate = Callable[[int, int], LoadTestResult]
"""(devices, seed) -> the result of a load test."""
CLEAR_FACTOR = 3.0
"""A run may end when its violation rate exceeds this many epsilons."""

STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles for 1 to 9 degrees of freedom."""


def check_seeds(seeds: Sequence[int]) -> None:
    """Raises ValueError for none, for one that is there twice, and for more than `STUDENT_T` has quantiles for."""
    if not 1 <= len(set(seeds)) == len(seeds) <= len(STUDENT_T) + 1:
        raise ValueError(f"seeds are {seeds}; give 1 to {len(STUDENT_T) + 1} different ones")


@dataclass(frozen=True, kw_only=True)
class CapacitySearch(LoadTest):
    """A search for the capacity, for each seed separately, as in a repeated experiment.

    The first seed starts at the number of devices that `start_tokens_per_s` would serve, doubles or halves until the
    violation rate crosses `epsilon`, then bisects until the bracket is at most `resolution` of its upper end (or 1).
    Each further seed starts at the last capacity and steps outwards. Rates are noisy: a seed's capacity is where the
    isotonic regression of all its rates crosses epsilon.
    """

    epsilon: float = 0.05
    seeds: tuple[int, ...] = (0, 1, 2)
    start_tokens_per_s: float = 512.0
    max_devices: int = 1024
    resolution: float = 0.03
    count_late: CountLate = field(default="answers", metadata={"omitted_at_default": True})
    """What epsilon is a share of: answers (WISP, sections 5.2.1 and 5.3), or rounds (section 3.1, Eq. 4)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.epsilon < 1:
            raise ValueError(
                f"epsilon is {self.epsilon}; it is the share of {self.count_late} that may be late: 0 to below 1"
            )
        if not (self.start_tokens_per_s > 0 and self.max_devices >= 1):
            raise ValueError(
                f"start_tokens_per_s={self.start_tokens_per_s:g} must be above 0, "
                f"max_devices={self.max_devices} 1 or more"
            )
        if not 0 <= self.resolution < 1:
            raise ValueError(f"resolution is {self.resolution}; it is a share of the capacity: 0 to below 1")
        check_seeds(self.seeds)

    def check_countable(self, classes: Sequence[SloClass]) -> None:
        """Raises ValueError for late rounds of a class that promises a time to the first token."""
        promised = [one.name for one in classes if one.ttft_s is not None]
        if self.count_late == "rounds" and promised:
            raise ValueError(
                f"count_late=rounds: {', '.join(promised)} promises a time to the first token, and a round is late by "
                "its speed alone; set ttft_s=null in workload.slo, or count_late=answers"
            )

    @property
    def max_late_share(self) -> float:
        """A load test goes on behind its window until more of its answers than this share are late. Rounds are known at
        the window's end.
        """
        return CLEAR_FACTOR * self.epsilon if self.count_late == "answers" else 0.0


@dataclass
class CapacityResult:
    """A capacity by seed, and all load tests of the search."""

    by_seed: dict[int, float] = field(default_factory=dict)
    load_tests: list[LoadTestResult] = field(default_factory=list)
    max_devices: int = 1024

    @property
    def mean(self) -> float:
        return fmean(self.by_seed.values())

    @property
    def capacity(self) -> int:
        return floor(self.mean)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % of Student's t over the seeds; None for one."""
        values = list(self.by_seed.values())
        if len(values) < 2:
            return None
        half = STUDENT_T[len(values) - 2] * stdev(values) / sqrt(len(values))
        return max(0.0, self.mean - half), self.mean + half

    @property
    def hit_max_devices(self) -> bool:
        """True if the search stopped at `max_devices`."""
        return max(self.by_seed.values()) >= self.max_devices


def search_capacity(evaluate: Evaluate, search: CapacitySearch, tokens_per_s: float) -> CapacityResult:
    """The capacity for an SLO of `tokens_per_s`. Passes through what `evaluate` raises."""
    found = CapacityResult(max_devices=search.max_devices)
    start, factor = max(1, min(search.max_devices, round(search.start_tokens_per_s / tokens_per_s))), 2.0
    for seed in search.seeds:
        bracket_search = _BracketSearch(evaluate, search, seed)
        found.by_seed[seed] = bracket_search.capacity(start, factor)
        found.load_tests += [bracket_search.results[n] for n in sorted(bracket_search.results)]
        start, factor = max(1, min(search.max_devices, round(found.by_seed[seed]))), 1.0 + max(search.resolution, 0.01)
    return found


class _BracketSearch:
    """The search under one seed."""

    def __init__(self, evaluate: Evaluate, search: CapacitySearch, seed: int) -> None:
        self._evaluate, self._search, self._seed = evaluate, search, seed
        self.results: dict[int, LoadTestResult] = {}

    def capacity(self, start: int, factor: float) -> float:
        low, high = self._bracket(start, factor)
        while high - low > max(1.0, self._search.resolution * high):
            middle = (low + high) // 2
            low, high = (middle, high) if self._meets_slo(middle) else (low, middle)
        xs = [0, *sorted(self.results)]
        most = CLEAR_FACTOR * self._search.epsilon or 1.0  # a run that ended early knows no higher rate
        rates = [0.0, *(min(most, self._late_share(n)) for n in xs[1:])]
        weights = [1.0, *(float(max(1, self.results[n].num_counted(self._search.count_late)[0])) for n in xs[1:])]
        return isotonic_crossing(xs, rates, weights, self._search.epsilon)

    def _bracket(self, start: int, factor: float) -> tuple[int, int]:
        """(devices that meet the SLO, devices that do not), or `max_devices` twice if it meets it; 0 always does."""
        limit, n = self._search.max_devices, start
        rises = self._meets_slo(n)
        while True:
            factor = factor if factor >= 2 else factor * factor
            other = min(limit, max(n + 1, int(n * factor))) if rises else min(n - 1, int(n / factor))
            if rises and n == limit:
                return limit, limit
            if other < 1:
                return 0, n
            if self._meets_slo(other) != rises:
                return (n, other) if rises else (other, n)
            n = other

    def _meets_slo(self, devices: int) -> bool:
        if devices not in self.results:
            self.results[devices] = self._evaluate(devices, self._seed)
        return self._late_share(devices) <= self._search.epsilon

    def _late_share(self, devices: int) -> float:
        return self.results[devices].late_share(self._search.count_late)
