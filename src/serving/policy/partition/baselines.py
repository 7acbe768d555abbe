"""The partitions of Hyperion's baselines (section V-A): greedy by memory for HEFT, stages of equal work for GPipe."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import fsum
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from serving.policy.partition.problem import (
    PartitionProblem,
    SplitPoints,
    cheapest_split,
    fitting_ranges,
    infeasibility_error,
    range_sums,
)

if TYPE_CHECKING:
    from serving.policy.partition.problem import Bools

FillOrder: TypeAlias = Literal["fastest", "front"]


@dataclass(frozen=True)
class GreedySplit:
    """Fills one tier after another with as many consecutive blocks as its memory holds, but leaves at least one block
    for each tier not filled yet (Eq. 10b).

    The paper says only "memory aware greedy"; the order is our choice. fastest: least seconds per block first, ties in
    pipeline order. front: in pipeline order. Links and numbers of nodes are ignored.
    """

    fill_order: FillOrder = "fastest"

    def __post_init__(self) -> None:
        if self.fill_order not in get_args(FillOrder):
            raise ValueError(f"partition: fill_order is {self.fill_order!r}; use {' or '.join(get_args(FillOrder))}")

    def solve(self, problem: PartitionProblem) -> SplitPoints:
        """O(T^2 N^2) in numpy: each tier's number of blocks is fixed in turn."""
        import numpy as np

        ranges = [fitting_ranges(problem, tier, allow_empty=False) for tier in range(len(problem.tiers))]
        places = np.arange(problem.num_blocks + 1)
        lengths = places[:, None] - places[None, :]
        counts = [0] * len(ranges)
        for tier in self.tier_order(problem):
            possible = lengths[_completable_ranges(ranges, tier)]
            if not possible.size:
                raise infeasibility_error(problem)
            counts[tier] = int(possible.max())
            ranges[tier] &= lengths == counts[tier]
        return tuple(accumulate(counts))

    def tier_order(self, problem: PartitionProblem) -> list[int]:
        """The tiers' indices in the order in which they are filled."""
        tiers = range(len(problem.tiers))
        if self.fill_order == "front":
            return list(tiers)
        return sorted(tiers, key=lambda tier: problem.prefix_s[tier][-1])


def _completable_ranges(ranges: list[Bools], tier: int) -> Bools:
    """The block ranges of a tier that belong to a complete split, given the ranges of the other tiers."""
    import numpy as np

    n = len(ranges[0])
    reached, leading = np.arange(n) == 0, np.arange(n) == n - 1
    for each in ranges[:tier]:
        reached = (each & reached[None, :]).any(axis=1)
    for each in reversed(ranges[tier + 1 :]):
        leading = (each & leading[:, None]).any(axis=0)
    found: Bools = ranges[tier] & reached[None, :] & leading[:, None]
    return found


WORK_UNITS_PER_BLOCK = 2**16
"""Work is counted in whole parts of a mean block, so that equal blocks tie whatever their seconds."""


@dataclass(frozen=True)
class GPipeSplit:
    """Minimises the largest stage, then the sum of squares of all stages (the variance that GPipe minimises), and gives
    the remainder to the later tiers.

    Work is a block's share of its model, so a tier's speed does not matter: GPipe assumes equal devices. It also
    ignores memory; here blocks that do not fit go to other tiers, which makes the baseline stronger.
    """

    def solve(self, problem: PartitionProblem) -> SplitPoints:
        """Two dynamic programs of O(T N^2)."""
        import numpy as np

        work = range_sums([0.0, *np.cumsum(block_work(problem)).tolist()])
        allowed = [fitting_ranges(problem, tier, allow_empty=False) for tier in range(len(problem.tiers))]
        largest = cheapest_split([np.where(each, work, np.inf) for each in allowed], np.maximum)
        if largest is None:
            raise infeasibility_error(problem)
        even = cheapest_split([np.where(each & (work <= largest.cost), work**2, np.inf) for each in allowed], np.add)
        assert even is not None
        return even.split_points


def block_work(problem: PartitionProblem) -> tuple[int, ...]:
    """Each block's share of its tier's seconds, averaged over tiers; a mean block has `WORK_UNITS_PER_BLOCK` units."""
    shares = [_relative_to_mean(row) for row in problem.block_s]
    return tuple(round(WORK_UNITS_PER_BLOCK * fsum(column) / len(shares)) for column in zip(*shares, strict=True))


def _relative_to_mean(seconds: tuple[float, ...]) -> list[float]:
    """1 for all blocks if none takes time."""
    mean = fsum(seconds) / len(seconds)
    return [value / mean if mean else 1.0 for value in seconds]
