"""The memory-aware greedy partition of the paper's HEFT baseline (Hyperion, section V-A).

Stages of equal work, as GPipe's: the paper's second baseline (Hyperion, section V-A).
"""

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
    """Tiers are filled one after the other, each with as many consecutive blocks as its memory holds and the tiers that
    are still to be filled can spare: each of them gets one at least (Eq. 10b), and none more than it holds.

    The paper says "memory aware greedy" and no more; the order is ours to choose. fastest: least seconds a block first,
    ties in pipeline order. front: in pipeline order. Nothing else is looked at, neither links nor how many nodes.
    """

    fill_order: FillOrder = "fastest"

    def __post_init__(self) -> None:
        if self.fill_order not in get_args(FillOrder):
            raise ValueError(f"partition: fill_order is {self.fill_order!r}; use {' or '.join(get_args(FillOrder))}")

    def solve(self, problem: PartitionProblem) -> SplitPoints:
        """O(T^2 N^2) in numpy: after each tier, what it took is fixed."""
        import numpy as np

        windows = [fitting_ranges(problem, tier, allow_empty=False) for tier in range(len(problem.tiers))]
        places = np.arange(problem.num_blocks + 1)
        lengths = places[:, None] - places[None, :]
        counts = [0] * len(windows)
        for tier in self.tier_order(problem):
            possible = lengths[_completable_ranges(windows, tier)]
            if not possible.size:
                raise infeasibility_error(problem)
            counts[tier] = int(possible.max())
            windows[tier] &= lengths == counts[tier]
        return tuple(accumulate(counts))

    def tier_order(self, problem: PartitionProblem) -> list[int]:
        """In which tiers are filled."""
        tiers = range(len(problem.tiers))
        return (
            sorted(tiers, key=lambda tier: problem.prefix_s[tier][-1]) if self.fill_order == "fastest" else list(tiers)
        )


def _completable_ranges(ranges: list[Bools], tier: int) -> Bools:
    """Which windows of a tier are part of a whole split: the tiers before reach its begin, those behind the last block
    from its end.
    """
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
"""Parts of a mean block in which work is counted: whole numbers, so that equal blocks tie whatever their seconds."""


@dataclass(frozen=True)
class GPipeSplit:
    """The largest stage as small as can be, then all as equal as can be (the least sum of squares, which is the
    variance that GPipe's partitioning minimises), then the remainder with the later tiers.

    Work is a block's share in its model, so tiers count as equal however fast they are: GPipe knows like devices. It
    knows no memory either; here what does not fit goes where there is room, so that the baseline is as strong as its
    paper allows.
    """

    def solve(self, problem: PartitionProblem) -> SplitPoints:
        """Two dynamic programmes of O(T N^2)."""
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
    """Of each block, in `WORK_UNITS_PER_BLOCK`s of a mean block: its share of its tier's seconds, in the mean over
    tiers.
    """
    shares = [_relative_to_mean(row) for row in problem.block_s]
    return tuple(round(WORK_UNITS_PER_BLOCK * fsum(column) / len(shares)) for column in zip(*shares, strict=True))


def _relative_to_mean(seconds: tuple[float, ...]) -> list[float]:
    """Blocks that take no time are alike."""
    mean = fsum(seconds) / len(seconds)
    return [value / mean if mean else 1.0 for value in seconds]
