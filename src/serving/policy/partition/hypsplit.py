"""HypSplit-DP: the slowest stage as fast as can be, by bisection (Hyperion, section IV-A, Algorithm 1)."""

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
    """Minimises max_j L_j under memory, each tier with a block at least (P1, Eq. 11), to within `epsilon_s`.

    Bisection on tau, of which feasibility is monotone; whether a tau is feasible says a dynamic programme (Eq. 14). The
    split is that of the last feasible tau. Of several predecessors it takes the first, as printed, so later tiers have
    the more blocks. How many nodes a tier has, and what crosses the links, is left out of account as in the paper.
    """

    epsilon_s: float = 1e-3
    """Section V-A; an absolute time, whatever the stages take."""

    def __post_init__(self) -> None:
        if not (isfinite(self.epsilon_s) and self.epsilon_s > 0):
            raise ValueError(f"partition: epsilon_s is {self.epsilon_s}; it must be more than 0 seconds")

    def solve(self, problem: PartitionProblem) -> SplitPoints:
        """O(T N^2) a tau in numpy; see `bounds_s` for how many.

        The upper bound is checked first, which the printed algorithm never does: it returns null where the best split
        lies within epsilon below it.
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
    """Between which the best tau lies, which the paper leaves open.

    Above: all blocks on the tier that takes longest for them. No stage of any split is slower, so only memory and the
    number of blocks can make this tau infeasible: where it is, every tau is. Below: the block that takes longest where
    it is fastest, for some stage has it; and an equal share of all blocks, each where it is fastest, for the stages
    together take that long at least and one of them the mean.
    """
    fastest = [min(column) for column in zip(*problem.block_s, strict=True)]
    low_s = max(*fastest, sum(fastest) / len(problem.tiers), 0.0)
    return low_s, max(sums[-1] for sums in problem.prefix_s)


class _FeasibilityCheck:
    """P_check(tau): is there a split whose every stage takes tau at most, and which?"""

    def __init__(self, problem: PartitionProblem) -> None:
        self._range_s = [range_sums(sums) for sums in problem.prefix_s]
        limits = zip(problem.prefix_nbytes, problem.memory_nbytes, strict=True)
        self._first_fitting = [first_within(range_sums(sums), limit) for sums, limit in limits]

    def split_points(self, tau_s: float) -> SplitPoints | None:
        """The printed loop over k takes the first that is reachable and within both limits. Both hold from some k on,
        so that is the first reachable one at or behind it.
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
    """[k]: the first reached place at or behind k; beyond all places where there is none."""
    import numpy as np

    found = np.where(reached, indices, len(indices))
    return np.minimum.accumulate(found[::-1])[::-1]
