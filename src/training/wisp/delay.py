"""How long a predictor takes for one token (WISP, Table 11)."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from training.wisp.families import Fitted

WARM_UP = 100


def single_sample(fitted: Fitted, features: NDArray[np.float32], trials: int = 1000) -> dict[str, float]:
    """mean, median, std, min, max, p95, p99 in seconds of `trials` calls, after 100 that do not count.

    `features` of shape (n, 4) are asked about in turn, as plain numbers, as a drafter has them.
    """
    rows = [tuple(map(float, row)) for row in features[: WARM_UP + trials]]
    taken = []
    for i in range(WARM_UP + trials):
        began = time.perf_counter()
        fitted.chance(rows[i % len(rows)])
        taken.append(time.perf_counter() - began)
    return _figures(np.array(taken[WARM_UP:]))


def _figures(seconds: NDArray[np.float64]) -> dict[str, float]:
    return {
        "mean": float(seconds.mean()),
        "median": float(np.median(seconds)),
        "std": float(seconds.std()),
        "min": float(seconds.min()),
        "max": float(seconds.max()),
        "p95": float(np.quantile(seconds, 0.95)),
        "p99": float(np.quantile(seconds, 0.99)),
    }
