"""From timings to the coefficients of a latency: least squares of the relative error, no coefficient below zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
from numpy.typing import NDArray

from serving.latency import Load
from training.stopwatch import Timing

Array = NDArray[np.float64]

COEFFICIENTS = ("a_s", "b_compute_s", "b_read_s", "c_s", "head_row_s", "head_c_s")
"""In the order of `terms`."""

FEWEST = 2 * len(COEFFICIENTS)


@dataclass(frozen=True)
class Score:
    """How well coefficients tell measured times."""

    r2: float
    """Coefficient of determination; may be below 0 where the mean would be the better guess."""
    mape: float
    """Mean absolute error as a share of the measured time."""
    configurations: int


@dataclass(frozen=True)
class Fit:
    """Coefficients by name, and how they do on what they were made from and on what they were not."""

    coefficients: dict[str, float]
    fitted: Score
    held_out: Score


def fit(timings: Sequence[Timing], held_out: Sequence[Timing]) -> Fit:
    """Coefficients of WISP, Eq. 19, and of the head, from medians of `timings`.

    WISP's appendix C uses ordinary least squares; weighting each equation by its time instead makes a lone decode as
    important as a long prefill. Raises ValueError for fewer than two timings a coefficient.
    """
    if len(timings) < FEWEST:
        raise ValueError(
            f"latency profile: {len(timings)} timed configurations are too few for {len(COEFFICIENTS)} coefficients; "
            f"set configurations to {FEWEST} or more."
        )
    x, y = _equations(timings)
    found = non_negative(x / y[:, None], np.ones(len(y)))
    coefficients = dict(zip(COEFFICIENTS, found.tolist(), strict=True))
    return Fit(coefficients, _score(x, y, found), _score(*_equations(held_out), found))


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
    )


def non_negative(x: Array, y: Array) -> Array:
    """The b >= 0 with the least |x b - y|, exactly: the best of the plain solutions on every choice of columns.

    At the optimum the columns with b > 0 solve the plain problem among themselves, so one of the choices is it; with
    six columns there are 63. Shapes: x (equations, columns), y (equations), b (columns).
    """
    scale = np.linalg.norm(x, axis=0)
    x = x / np.where(scale > 0, scale, 1)
    best, least = np.zeros(x.shape[1]), float(y @ y)
    for columns in _choices(x.shape[1]):
        tried = np.zeros(x.shape[1])
        tried[columns] = np.linalg.lstsq(x[:, columns], y)[0]
        error = float(np.sum((x @ tried - y) ** 2))
        if tried.min() >= 0 and error < least:
            best, least = tried, error
    return best / np.where(scale > 0, scale, 1)


def _choices(columns: int) -> Iterator[list[int]]:
    every = range(columns)
    return map(list, chain.from_iterable(combinations(every, n) for n in range(1, columns + 1)))


def _equations(timings: Sequence[Timing]) -> tuple[Array, Array]:
    x = np.array([terms(timing.loads) for timing in timings], dtype=np.float64)
    return x, np.array([timing.median_s for timing in timings])


def _score(x: Array, y: Array, b: Array) -> Score:
    off = x @ b - y
    spread = float(np.sum((y - y.mean()) ** 2))
    return Score(1 - float(off @ off) / spread, float(np.mean(np.abs(off) / y)), len(y))
