"""A split as a path from no block to all of them, one step a tier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from serving.policy.partition.problem import Ends

if TYPE_CHECKING:
    import numpy as np

    from serving.policy.partition.windows import Floats, Indices


class Path(NamedTuple):
    cost: float
    ends: Ends


def cheapest(steps: Sequence[Floats], join: np.ufunc) -> Path | None:
    """The path that costs least, by dynamic programming in O(T N^2); None where there is none.

    `steps[j][n, k]` is what tier j costs with blocks k .. n-1, inf where it cannot have them; `join` makes a path's
    cost of its steps': np.add or np.maximum. Of equally cheap paths the one whose last tier has most blocks, then the
    tier before it, and so on.
    """
    import numpy as np

    costs = np.full(len(steps[0]), np.inf)
    costs[0] = 0.0
    before: list[Indices] = []
    for step in steps:
        joined = join(costs[None, :], step)
        before.append(joined.argmin(axis=1))
        costs = joined.min(axis=1)
    if costs[-1] == np.inf:
        return None
    return Path(float(costs[-1]), traced(before))


def traced(before: Sequence[Indices]) -> Ends:
    """The ends that lead to all blocks; `before[j][n]` is where tier j begins if it ends at n."""
    ends = [len(before[0]) - 1]
    for row in reversed(before[1:]):
        ends.append(int(row[ends[-1]]))
    return tuple(reversed(ends))
