"""How the time of linear layers follows from computing and reading: their sum, the larger, or hypot, which is used.

Fitted to kernels that were measured alone, from one token to thousands: two shares of the peaks for each processor.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from training.latency.published_speeds import PublishedSpeed
from training.latency.speed_fit import Array, SpeedTerms

Combination: TypeAlias = Callable[[Array, Array], Array]

COMBINATIONS: Mapping[str, Combination] = {
    "the sum of computing and reading": np.add,
    "the larger of the two": np.maximum,
    "hypot, as used": np.hypot,
}
_START = np.log([0.5, 0.7])


def kernel_errors(speeds: Sequence[PublishedSpeed], combine: Combination) -> Array:
    """Predicted over measured, less 1, of every row, by the fit of its processor."""
    processors = sorted({speed.silicon for speed in speeds})
    return np.concatenate([_errors([s for s in speeds if s.silicon == name], combine) for name in processors])


def _errors(speeds: Sequence[PublishedSpeed], combine: Combination) -> Array:
    from scipy.optimize import least_squares

    terms, seconds = SpeedTerms.of(speeds), np.array([speed.seconds for speed in speeds])

    def ratios(x: Array) -> Array:
        compute, bandwidth = np.exp(x)
        return np.asarray(combine(terms.linear_s / compute, terms.linear_read_s / bandwidth) / seconds)

    found = least_squares(lambda x: np.log(ratios(x)), _START, loss="soft_l1", f_scale=0.15).x
    return np.asarray(ratios(found) - 1)
