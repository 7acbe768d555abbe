"""From timings to the coefficients of a latency, and how far they can be trusted.

Timings as equations: what each coefficient is multiplied with, and the seconds that came of it.

Least squares: the two ways in which coefficients are found.

How well coefficients tell measured times, by the measures of WISP, appendix C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from serving.hardware.latency import COEFFICIENTS, Load
from training.latency.grid import FEWEST, Effort
from training.latency.timing import Timing

Array: TypeAlias = NDArray[np.float64]


def equations(timings: Sequence[Timing]) -> tuple[Array, Array]:
    """Terms, of shape (configurations, coefficients) as `COEFFICIENTS` are ordered, and median seconds."""
    x = np.array([terms(timing.loads) for timing in timings], dtype=np.float64)
    return x, np.array([timing.median_s for timing in timings])


def terms(loads: Sequence[Load]) -> tuple[float, ...]:
    """What each coefficient is multiplied with, summed over the passes of one piece of work, all of full depth."""
    heads = [load.head_rows for load in loads if load.head_rows]
    return (
        sum(load.rows for load in loads),
        sum(load.interactions for load in loads),
        sum(load.cached for load in loads),
        len(loads),
        sum(heads),
        len(heads),
        sum(load.further for load in loads),
        1,
    )


Solve: TypeAlias = Callable[[Array, Array], Array]
"""(terms, seconds) -> coefficients; shapes (n, k), (n), (k)."""

SLACK = 1e-10
"""Of the target's length: below it a slope is rounding."""

PAPER = 4
"""Terms that WISP, Eq. 19 has, the first ones; the rest are ours."""


def relative(x: Array, y: Array) -> Array:
    """The coefficients >= 0 with the least squares of the relative error: what is used.

    Each equation is weighted by its time, which makes a lone decode as important as a long prefill; and time is never
    negative, however few rows there are.
    """
    return non_negative(x / y[:, None], np.ones(len(y)))


def ordinary(x: Array, y: Array) -> Array:
    """Plain least squares of the seconds on WISP's own terms, signs free: appendix C, for comparison.

    Its constant is charged to each pass, which for a batch is the paper's intercept.
    """
    found = np.zeros(x.shape[1])
    scale = _scale(x[:, :PAPER])
    found[:PAPER] = np.linalg.lstsq(x[:, :PAPER] / scale, y)[0] / scale
    return found


def non_negative(x: Array, y: Array) -> Array:
    """The b >= 0 with the least |x b - y|, exactly. Shapes: x (equations, columns), y (equations), b (columns).

    Columns of zeros get nothing, and of equal columns the first gets all.
    """
    scale, columns = _scale(x), _telling(x)
    q, r = np.linalg.qr(x / scale)  # the same problem with as few equations as columns
    target = q.T @ y
    found = _without_negative(r, target, columns)
    slopes = r[:, columns].T @ (target - r @ found)
    if slopes.max(initial=0) > SLACK * float(np.linalg.norm(target)):  # a column that was left out would still help
        found = _best(r, target, columns)
    return found / scale


def _without_negative(x: Array, y: Array, columns: list[int]) -> Array:
    """The plain solution on the columns that are left when the lowest one below 0 goes, again and again."""
    left, found = list(columns), np.zeros(x.shape[1])
    while left:
        tried = np.linalg.lstsq(x[:, left], y)[0]
        if tried.min() >= 0:
            found[left] = tried
            break
        left.pop(int(tried.argmin()))
    return found


def _best(x: Array, y: Array, columns: list[int]) -> Array:
    """The best of the plain solutions on every choice of columns: at the optimum those with b > 0 solve the plain
    problem among themselves, so one of the choices is it; of seven columns there are 127.
    """
    best, least = np.zeros(x.shape[1]), float("inf")
    for chosen in _choices(columns):
        tried = np.zeros(x.shape[1])
        tried[chosen] = np.linalg.lstsq(x[:, chosen], y)[0]
        error = float(np.sum((x @ tried - y) ** 2))
        if tried.min() >= 0 and error < least:
            best, least = tried, error
    return best


def _scale(x: Array) -> Array:
    norms: Array = np.linalg.norm(x, axis=0)
    return np.where(norms > 0, norms, 1)


def _telling(x: Array) -> list[int]:
    """Columns that are neither nothing nor the same as one before."""
    first = {column.tobytes(): i for i, column in reversed(list(enumerate(x.T.copy())))}
    return sorted(i for i in first.values() if x[:, i].any())


def _choices(columns: Sequence[int]) -> Iterator[list[int]]:
    return map(list, chain.from_iterable(combinations(columns, n) for n in range(len(columns) + 1)))


@dataclass(frozen=True)
class Score:
    """Of `configurations` that may have been fitted on, or not."""

    configurations: int
    r2: float
    """Coefficient of determination; may be below 0 where the mean would be the better guess."""
    adjusted_r2: float | None
    """For the number of coefficients; None of so few configurations that it has no meaning."""
    rmse_s: float
    mae_s: float
    mape: float
    """Mean absolute error as a share of the measured time."""
    max_s: float
    """The largest absolute error."""


def score(x: Array, y: Array, b: Array) -> Score:
    """Shapes: x (configurations, coefficients), y (configurations), b (coefficients)."""
    off = x @ b - y
    spread = float(np.sum((y - y.mean()) ** 2))
    r2 = 1 - float(off @ off) / spread if spread else 0.0
    used, n = int(np.count_nonzero(b)), len(y)
    adjusted = 1 - (1 - r2) * (n - 1) / (n - used - 1) if n > used + 1 else None
    absolute = np.abs(off)
    mape, largest = float(np.mean(absolute / y)), float(absolute.max())
    return Score(n, r2, adjusted, float(np.sqrt(np.mean(off**2))), float(absolute.mean()), mape, largest)


def by_category(timings: Sequence[Timing], x: Array, y: Array, b: Array) -> dict[str, float]:
    """MAPE of each category that is there."""
    off = np.abs(x @ b - y) / y
    names = [timing.shape.category for timing in timings]
    return {name: float(np.mean(off[[name == other for other in names]])) for name in dict.fromkeys(names)}


@dataclass(frozen=True)
class Folds:
    """Cross-validation on the fitted configurations: means over the folds, and what they scatter by."""

    r2: float
    r2_deviation: float
    mape: float
    mape_deviation: float


@dataclass(frozen=True)
class Fit:
    """Coefficients by name; how they do on what they were made from and on what they were not."""

    coefficients: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    """95 %: 2.5th and 97.5th percentile over bootstraps of the fitted configurations."""
    fitted: Score
    held_out: Score
    folds: Folds
    fitted_mape: dict[str, float]
    held_out_mape: dict[str, float]
    """By category."""


def fit(timings: Sequence[Timing], effort: Effort, solve: Solve = relative) -> Fit:
    """Coefficients of WISP, Eq. 19, and of ours, from medians of the timings that are not held out.

    Raises ValueError for fewer timings than `FEWEST`, or fewer than two that are held out.
    """
    known = [timing for timing in timings if not timing.shape.held_out]
    unseen = [timing for timing in timings if timing.shape.held_out]
    _check(len(known), len(unseen))
    x, y = equations(known)
    x_new, y_new = equations(unseen)
    found, generator = solve(x, y), np.random.default_rng(effort.seed)
    return Fit(
        coefficients=_named(found),
        intervals=_intervals(x, y, solve, effort.bootstraps, generator),
        fitted=score(x, y, found),
        held_out=score(x_new, y_new, found),
        folds=_folds(x, y, solve, effort.folds, generator),
        fitted_mape=by_category(known, x, y, found),
        held_out_mape=by_category(unseen, x_new, y_new, found),
    )


def plain_fit(timings: Sequence[Timing], effort: Effort) -> Fit:
    """The paper's own fit of the same timings: reported, never used."""
    return fit(timings, effort, ordinary)


def _check(known: int, unseen: int) -> None:
    if known < FEWEST or unseen < 2:
        raise ValueError(
            f"latency profile: {known} configurations to fit on and {unseen} held out are too few for "
            f"{len(COEFFICIENTS)} coefficients; there must be {FEWEST} and 2 or more."
        )


def _named(b: Array) -> dict[str, float]:
    return dict(zip(COEFFICIENTS, b.tolist(), strict=True))


def _intervals(
    x: Array, y: Array, solve: Solve, bootstraps: int, generator: np.random.Generator
) -> dict[str, tuple[float, float]]:
    draws = (generator.integers(len(y), size=len(y)) for _ in range(bootstraps))
    found = np.array([solve(x[drawn], y[drawn]) for drawn in draws])
    low, high = np.quantile(found, [0.025, 0.975], axis=0).tolist()
    return {name: (low[i], high[i]) for i, name in enumerate(COEFFICIENTS)}


def _folds(x: Array, y: Array, solve: Solve, folds: int, generator: np.random.Generator) -> Folds:
    scores = []
    for left_out in np.array_split(generator.permutation(len(y)), folds):
        kept = np.setdiff1d(np.arange(len(y)), left_out)
        scores.append(score(x[left_out], y[left_out], solve(x[kept], y[kept])))
    r2, mape = np.array([each.r2 for each in scores]), np.array([each.mape for each in scores])
    return Folds(float(r2.mean()), float(r2.std()), float(mape.mean()), float(mape.std()))
