"""From timings to the coefficients of a latency, and how far they can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serving.hardware.latency import COEFFICIENTS
from training.latency.effort import FEWEST, Effort
from training.latency.equations import Array, equations
from training.latency.score import Score, by_category, score
from training.latency.solve import Solve, ordinary, relative
from training.latency.timing import Timing


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
