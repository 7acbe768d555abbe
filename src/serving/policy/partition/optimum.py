"""The optimal split for the latency of a single request, or for the throughput of the pipeline."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from serving.policy.partition.problem import (
    PartitionProblem,
    SplitPoints,
    SplitSolution,
    cheapest_split,
    fitting_ranges,
    infeasibility_error,
    range_sums,
)

if TYPE_CHECKING:
    from serving.policy.partition.problem import Floats

SplitObjective: TypeAlias = Literal["latency", "throughput"]
RELATIVE_TOLERANCE = 1e-9
"""Sums of seconds that differ by a smaller share count as equal."""


@dataclass(frozen=True)
class OptimalSplit:
    """Exact, and not from the paper: unlike HypSplit-DP it considers numbers of nodes and links, and may leave tiers
    empty.

    latency: minimises the sum of stages and links of a single request; of equal splits the one with the highest
    throughput. throughput: minimises max_j L_j / K_j; of equal splits the one with the lowest latency. The two differ
    much: a pipeline does not help a single request, which the fastest tier mostly serves best.
    """

    objective: SplitObjective = "latency"
    rate_per_s: float | None = None
    """Requests per second that every stage must keep up with; None: no limit."""
    max_utilisation: float = 0.9
    """The share of its time that a stage may be busy at that rate, so that queues stay short."""
    strict: bool = True
    """True: raise an error if no split keeps up with the rate. False: take the split of highest throughput."""

    def __post_init__(self) -> None:
        if self.objective not in get_args(SplitObjective):
            raise ValueError(f"partition: objective is {self.objective!r}; use {' or '.join(get_args(SplitObjective))}")
        if self.rate_per_s is not None and not (isfinite(self.rate_per_s) and self.rate_per_s > 0):
            raise ValueError(f"partition: rate_per_s is {self.rate_per_s}; it must be more than 0, or null for any")
        if not 0 < self.max_utilisation <= 1:
            raise ValueError(
                f"partition: max_utilisation is {self.max_utilisation}; it is a share of the time: above 0, at most 1"
            )

    def solve(self, problem: PartitionProblem) -> SplitPoints:
        """Dynamic programs of O(T N^2): two for throughput, some 20 for latency.

        Raises ValueError if memory does not hold the model, or if no split keeps up with the rate.
        """
        import numpy as np

        tiers = _RangeCosts(problem)
        least = cheapest_split(tiers.stage_s, np.maximum)
        if least is None:
            raise infeasibility_error(problem, allow_empty=True)
        limit_s = float("inf") if self.rate_per_s is None else self.max_utilisation / self.rate_per_s
        if least.cost > limit_s and self.strict:
            raise ValueError(self._too_slow(problem, least))
        if self.objective == "throughput" or least.cost > limit_s:
            return tiers.fastest(least.cost).split_points
        return tiers.least_bottleneck(least.cost, limit_s)

    def _too_slow(self, problem: PartitionProblem, best: SplitSolution) -> str:
        rows = zip(problem.tiers, problem.stage_s(best.split_points), problem.node_counts, strict=True)
        name, stage_s, count = max(rows, key=lambda row: row[1] / row[2])
        return (
            f"partition: no split keeps up with rate_per_s={self.rate_per_s:g} at "
            f"max_utilisation={self.max_utilisation:g}. The best one carries "
            f"{self.max_utilisation / best.cost:.4g} requests a second: {name} then takes {stage_s:.4g} s a request on "
            f"each of {count} nodes. Lower rate_per_s, raise max_utilisation, or give {name} more or faster nodes."
        )


class _RangeCosts:
    """The cost of every block range on every tier; inf if its memory does not hold the range."""

    def __init__(self, problem: PartitionProblem) -> None:
        import numpy as np

        self.stage_s: list[Floats] = []
        self._request_s: list[Floats] = []
        for tier, (sums, count) in enumerate(zip(problem.prefix_s, problem.node_counts, strict=True)):
            seconds = np.where(fitting_ranges(problem, tier, allow_empty=True), range_sums(sums), np.inf)
            self.stage_s.append(seconds / count)
            self._request_s.append(seconds + _transfers_s(problem, tier)[:, None])

    def fastest(self, limit_s: float) -> SplitSolution:
        """The split of lowest latency in which every stage takes at most `limit_s` per node; there must be one."""
        import numpy as np

        rows = zip(self._request_s, self.stage_s, strict=True)
        path = cheapest_split([np.where(loads <= limit_s, steps, np.inf) for steps, loads in rows], np.add)
        assert path is not None
        return path

    def least_bottleneck(self, min_bottleneck_s: float, limit_s: float) -> SplitPoints:
        """Of the splits of lowest latency within the limit, the one with the least bottleneck.

        Bisects over all possible bottlenecks: latency only falls as a larger one is allowed.
        """
        import numpy as np

        enough_s = self.fastest(limit_s).cost * (1 + RELATIVE_TOLERANCE)
        every = np.stack(self.stage_s)
        limits = np.unique(every[(every >= min_bottleneck_s) & (every <= limit_s) & (every < np.inf)]).tolist()
        found = bisect_left(limits, True, key=lambda limit: self.fastest(limit).cost <= enough_s)
        return self.fastest(limits[found]).split_points


def _transfers_s(problem: PartitionProblem, tier: int) -> Floats:
    """[n]: transfer time over the link after the tier, with n blocks before it."""
    import numpy as np

    last = tier == len(problem.tiers) - 1
    return np.array([0.0 if last else problem.transfer_s(tier, n) for n in range(problem.num_blocks + 1)])
