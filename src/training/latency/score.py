"""How well coefficients tell measured times, by the measures of WISP, appendix C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training.latency.equations import Array
from training.latency.timing import Timing


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
