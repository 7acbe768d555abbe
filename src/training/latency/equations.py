"""Timings as equations: what each coefficient is multiplied with, and the seconds that came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from serving.hardware.latency import Load
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
