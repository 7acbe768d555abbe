"""Fits latency coefficients to timings by least squares, with intervals, scores and cross-validation (WISP,
appendix C).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from serving.hardware.latency import COEFFICIENTS, ForwardLoad
from training.latency.grid import MIN_FITTED, ProfilingOptions
from training.latency.timing import Timing

Array: TypeAlias = NDArray[np.float64]


def design_matrix(timings: Sequence[Timing]) -> tuple[Array, Array]:
    """Terms (configurations, coefficients) in the order of `COEFFICIENTS`, and median seconds (configurations)."""
    x = np.array([terms(timing.loads) for timing in timings], dtype=np.float64)
    return x, np.array([timing.median_s for timing in timings])


def terms(loads: Sequence[ForwardLoad]) -> tuple[float, ...]:
    """The factor of each coefficient, summed over the forwards of one piece of work, all of full depth."""
    heads = [load.head_tokens for load in loads if load.head_tokens]
    return (
        sum(load.num_tokens for load in loads),
        sum(load.interactions for load in loads),
        sum(load.cached_tokens for load in loads),
        len(loads),
        sum(heads),
        len(heads),
        sum(load.extra_sessions for load in loads),
        1,
    )


Solver: TypeAlias = Callable[[Array, Array], Array]
"""(terms, seconds) -> coefficients; shapes (n, k), (n), (k)."""

NUM_PAPER_TERMS = 4
"""The first terms, which are those of WISP, Eq. 19; the others are ours."""


def relative_least_squares(x: Array, y: Array) -> Array:
    """The coefficients >= 0 with the least squares of the relative error. This is the fit that is used.

    Relative errors make a lone decode as important as a long prefill. No predicted time is negative.
    """
    return non_negative_least_squares(x / y[:, None], np.ones(len(y)))


def ordinary_least_squares(x: Array, y: Array) -> Array:
    """Plain least squares of the seconds on WISP's own terms with any sign: appendix C, for comparison.

    Its constant counts once per forward, which for a batch is the paper's intercept.
    """
    found = np.zeros(x.shape[1])
    scale = _column_norms(x[:, :NUM_PAPER_TERMS])
    found[:NUM_PAPER_TERMS] = np.linalg.lstsq(x[:, :NUM_PAPER_TERMS] / scale, y)[0] / scale
    return found


def non_negative_least_squares(x: Array, y: Array) -> Array:
    """The b >= 0 with the least |x b - y|. Shapes: x (equations, columns), y (equations), b (columns).

    Columns of zeros get 0, and of equal columns only the first is not 0.
    """
    from scipy.optimize import nnls

    first_of = {column.tobytes(): i for i, column in reversed(list(enumerate(x.T.copy())))}
    columns = sorted(first_of.values())
    scale, found = _column_norms(x[:, columns]), np.zeros(x.shape[1])
    q, r = np.linalg.qr(x[:, columns] / scale)  # the same problem with as few equations as columns
    found[columns] = nnls(r, q.T @ y)[0] / scale
    return found


def _column_norms(x: Array) -> Array:
    norms: Array = np.linalg.norm(x, axis=0)
    return np.where(norms > 0, norms, 1)


@dataclass(frozen=True)
class FitScore:
    """Errors of a fit on `configurations` configurations."""

    configurations: int
    r2: float
    """Coefficient of determination; below 0 if the mean would be the better prediction."""
    adjusted_r2: float | None
    """Adjusted for the number of coefficients, of which the constant is one; None for too few configurations."""
    rmse_s: float
    mae_s: float
    mape: float
    """Mean absolute error as a share of the measured time."""
    max_s: float
    """The largest absolute error."""


def score_fit(x: Array, y: Array, b: Array) -> FitScore:
    """Shapes: x (configurations, coefficients), y (configurations), b (coefficients)."""
    off = x @ b - y
    spread = float(np.sum((y - y.mean()) ** 2))
    r2 = 1 - float(off @ off) / spread if spread else 0.0
    used, n = int(np.count_nonzero(b)), len(y)
    adjusted = 1 - (1 - r2) * (n - 1) / (n - used) if n > used else None
    absolute = np.abs(off)
    mape, largest = float(np.mean(absolute / y)), float(absolute.max())
    return FitScore(n, r2, adjusted, float(np.sqrt(np.mean(off**2))), float(absolute.mean()), mape, largest)


def mape_by_category(timings: Sequence[Timing], x: Array, y: Array, b: Array) -> dict[str, float]:
    """MAPE of each category."""
    off = np.abs(x @ b - y) / y
    names = [timing.shape.category for timing in timings]
    return {name: float(np.mean(off[[name == other for other in names]])) for name in dict.fromkeys(names)}


@dataclass(frozen=True)
class CrossValidation:
    """Cross-validation on the fitted configurations: mean and standard deviation over the folds."""

    folds: int
    """As many as asked for, or fewer, so that each has two configurations."""
    r2: float
    r2_deviation: float
    mape: float
    mape_deviation: float


@dataclass(frozen=True)
class LatencyFit:
    """Coefficients by name, with their scores on the fitted and on the held-out configurations."""

    coefficients: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    """95 %: 2.5th and 97.5th percentile over bootstraps of the fitted configurations."""
    fitted: FitScore
    held_out: FitScore
    folds: CrossValidation
    fitted_mape: dict[str, float]
    held_out_mape: dict[str, float]
    """By category."""


def fit_latency(
    timings: Sequence[Timing], options: ProfilingOptions, solver: Solver = relative_least_squares
) -> LatencyFit:
    """Fits the coefficients of WISP, Eq. 19, and ours to the medians of the timings that are not held out.

    Raises ValueError for fewer timings than `MIN_FITTED`, or fewer than two that are held out.
    """
    fitted = [timing for timing in timings if not timing.shape.held_out]
    held_out = [timing for timing in timings if timing.shape.held_out]
    _check_counts(len(fitted), len(held_out))
    x, y = design_matrix(fitted)
    x_new, y_new = design_matrix(held_out)
    found, generator = solver(x, y), np.random.default_rng(options.seed)
    return LatencyFit(
        coefficients=_by_name(found),
        intervals=_bootstrap_intervals(x, y, solver, options.bootstraps, generator),
        fitted=score_fit(x, y, found),
        held_out=score_fit(x_new, y_new, found),
        folds=_cross_validate(x, y, solver, options.folds, generator),
        fitted_mape=mape_by_category(fitted, x, y, found),
        held_out_mape=mape_by_category(held_out, x_new, y_new, found),
    )


def fit_ordinary(timings: Sequence[Timing], options: ProfilingOptions) -> LatencyFit:
    """The paper's own fit of the same timings; reported, not used."""
    return fit_latency(timings, options, ordinary_least_squares)


def _check_counts(num_fitted: int, num_held_out: int) -> None:
    if num_fitted < MIN_FITTED or num_held_out < 2:
        raise ValueError(
            f"latency profile: {num_fitted} configurations to fit on and {num_held_out} held out are too few for "
            f"{len(COEFFICIENTS)} coefficients; there must be {MIN_FITTED} and 2 or more."
        )


def _by_name(b: Array) -> dict[str, float]:
    return dict(zip(COEFFICIENTS, b.tolist(), strict=True))


def _bootstrap_intervals(
    x: Array, y: Array, solver: Solver, bootstraps: int, generator: np.random.Generator
) -> dict[str, tuple[float, float]]:
    draws = (generator.integers(len(y), size=len(y)) for _ in range(bootstraps))
    found = np.array([solver(x[drawn], y[drawn]) for drawn in draws])
    low, high = np.quantile(found, [0.025, 0.975], axis=0).tolist()
    return {name: (low[i], high[i]) for i, name in enumerate(COEFFICIENTS)}


def _cross_validate(x: Array, y: Array, solver: Solver, folds: int, generator: np.random.Generator) -> CrossValidation:
    scores, folds = [], min(folds, len(y) // 2)  # a fold of one configuration has no R2
    for left_out in np.array_split(generator.permutation(len(y)), folds):
        kept = np.setdiff1d(np.arange(len(y)), left_out)
        scores.append(score_fit(x[left_out], y[left_out], solver(x[kept], y[kept])))
    r2, mape = np.array([each.r2 for each in scores]), np.array([each.mape for each in scores])
    return CrossValidation(folds, float(r2.mean()), float(r2.std()), float(mape.mean()), float(mape.std()))
