"""All windows of consecutive blocks at once, as matrices [n, k] of blocks k .. n-1; 0 <= k, n <= N."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from serving.policy.partition.problem import Problem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Bools: TypeAlias = NDArray[np.bool_]
    Indices: TypeAlias = NDArray[np.intp]


def between(sums: Sequence[float]) -> Floats:
    """Of every window, from prefix sums; no window is right of the diagonal, where the figures mean nothing."""
    import numpy as np

    ends: Floats = np.array(sums, np.float64)
    return ends[:, None] - ends[None, :]


def first_within(windows: Floats, limit: float) -> Indices:
    """[n]: the first block from which a window that ends at n stays within the limit; n where none does.

    Sums only shrink as a window begins later, so all that begin behind it stay within the limit as well.
    """
    found: Indices = (windows <= limit).argmax(axis=1)
    return found


def held(problem: Problem, tier: int, empty: bool) -> Bools:
    """Which windows a tier's memory holds (Eq. 11c); `empty`: is one of no blocks a window?"""
    import numpy as np

    forward: Bools = np.tri(problem.blocks + 1, k=0 if empty else -1, dtype=bool)
    within: Bools = between(problem.nbyte_sums[tier]) <= problem.memory_nbytes[tier]
    return forward & within
