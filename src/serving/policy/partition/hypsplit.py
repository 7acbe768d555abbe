"""HypSplit-DP: minimises the slowest stage by bisection (Hyperion, section IV-A, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from serving.policy.partition.problem import (
    PartitionProblem,
    SplitPoints,
    first_within,
    infeasibility_error,
    range_sums,
    trace_back,
)

if TYPE_CHECKING:
    from serving.policy.partition.problem import Bools, Indices


@dataclass(frozen=True)
class HypSplit:
    """Minimises max_j L_j to within `epsilon_s`, under memory limits and with at least one block per tier (P1, Eq. 11).

    Bisects the bound tau; a dynamic program checks if a tau is feasible (Eq. 14). The result is the split of the last
    feasible tau. Of several predecessors it takes the first, as printed, so later tiers get more blocks. Numbers of
    nodes and links are ignored, as in the paper.
    """

    epsilon_s: float = 1e-3
    """Section V-A. An absolute time, however long the stages are."""

    def __post_init__(self) -> None:
        if not (isfinite(self.epsilon_s) and self.epsilon_s > 0):
            raise ValueError(f"partition: epsilon_s is {self.epsilon_s}; it must be more than 0 seconds")

    def solve(self, problem: PartitionProblem) -> SplitPoints:
        """O(T N^2) for each tau, in numpy; `tau_bounds_s` limits their number.

        The upper bound is checked first. The printed algorithm does not, and returns null if the best split lies within
        epsilon below it.
        """
        check = _FeasibilityCheck(problem)
        low_s, high_s = tau_bounds_s(problem)
        ends = check.split_points(high_s)
        if ends is None:
            raise infeasibility_error(problem)
        while high_s - low_s > self.epsilon_s and low_s < (tau_s := (low_s + high_s) / 2) < high_s:
            found = check.split_points(tau_s)
            if found is None:
                low_s = tau_s
            else:
                high_s, ends = tau_s, found
        return ends


def tau_bounds_s(problem: PartitionProblem) -> tuple[float, float]:
    """Lower and upper bound of the best tau; the paper gives none.

    Upper: all blocks on the slowest tier. No stage can be slower, so if this tau is infeasible, every tau is. Lower:
    the slowest block on its fastest tier, and the mean stage with every block on its fastest tier.
    """
    fastest = [min(column) for column in zip(*problem.block_s, strict=True)]
    low_s = max(*fastest, sum(fastest) / len(problem.tiers), 0.0)
    return low_s, max(sums[-1] for sums in problem.prefix_s)


class _FeasibilityCheck:
    """P_check(tau): finds a split in which every stage takes at most tau."""

    def __init__(self, problem: PartitionProblem) -> None:
        self._range_s = [range_sums(sums) for sums in problem.prefix_s]
        limits = zip(problem.prefix_nbytes, problem.memory_nbytes, strict=True)
        self._first_fitting = [first_within(range_sums(sums), limit) for sums, limit in limits]

    def split_points(self, tau_s: float) -> SplitPoints | None:
        """The printed loop takes the first k that is reachable and within both limits. Both limits hold from some k on,
        so it is the first reachable k from there.
        """
        import numpy as np

        places = np.arange(len(self._range_s[0]))
        reached = places == 0
        before: list[Indices] = []
        for seconds, held_from in zip(self._range_s, self._first_fitting, strict=True):
            begins = _next_reached(reached, places)[np.maximum(first_within(seconds, tau_s), held_from)]
            reached = begins < places
            before.append(begins)
        return trace_back(before) if reached[-1] else None


def _next_reached(reached: Bools, indices: Indices) -> Indices:
    """[k]: the first reached index >= k; len(indices) if there is none."""
    import numpy as np

    found = np.where(reached, indices, len(indices))
    return np.minimum.accumulate(found[::-1])[::-1]
