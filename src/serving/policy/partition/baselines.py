"""The memory-aware greedy partition of the paper's HEFT baseline (Hyperion, section V-A).

Stages of equal work, as GPipe's: the paper's second baseline (Hyperion, section V-A).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import fsum
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from serving.policy.partition.infeasibility import refusal
from serving.policy.partition.problem import Ends, Problem, between, cheapest, held

if TYPE_CHECKING:
    from serving.policy.partition.problem import Bools

Fill: TypeAlias = Literal["fastest", "front"]


@dataclass(frozen=True)
class Greedy:
    """Tiers are filled one after the other, each with as many consecutive blocks as its memory holds and the tiers that
    are still to be filled can spare: each of them gets one at least (Eq. 10b), and none more than it holds.

    The paper says "memory aware greedy" and no more; the order is ours to choose. fastest: least seconds a block first,
    ties in pipeline order. front: in pipeline order. Nothing else is looked at, neither links nor how many nodes.
    """

    fill: Fill = "fastest"

    def __post_init__(self) -> None:
        if self.fill not in get_args(Fill):
            raise ValueError(f"partition: fill is {self.fill!r}; use {' or '.join(get_args(Fill))}")

    def divide(self, problem: Problem) -> Ends:
        """O(T^2 N^2) in numpy: after each tier, what it took is fixed."""
        import numpy as np

        windows = [held(problem, tier, empty=False) for tier in range(len(problem.tiers))]
        places = np.arange(problem.blocks + 1)
        lengths = places[:, None] - places[None, :]
        counts = [0] * len(windows)
        for tier in self.order(problem):
            possible = lengths[_possible(windows, tier)]
            if not possible.size:
                raise refusal(problem)
            counts[tier] = int(possible.max())
            windows[tier] &= lengths == counts[tier]
        return tuple(accumulate(counts))

    def order(self, problem: Problem) -> list[int]:
        """In which tiers are filled."""
        tiers = range(len(problem.tiers))
        return sorted(tiers, key=lambda tier: problem.second_sums[tier][-1]) if self.fill == "fastest" else list(tiers)


def _possible(windows: list[Bools], tier: int) -> Bools:
    """Which windows of a tier are part of a whole split: the tiers before reach its begin, those behind the last block
    from its end.
    """
    import numpy as np

    n = len(windows[0])
    reached, leading = np.arange(n) == 0, np.arange(n) == n - 1
    for each in windows[:tier]:
        reached = (each & reached[None, :]).any(axis=1)
    for each in reversed(windows[tier + 1 :]):
        leading = (each & leading[:, None]).any(axis=0)
    found: Bools = windows[tier] & reached[None, :] & leading[:, None]
    return found


UNIT = 2**16
"""Parts of a mean block in which work is counted: whole numbers, so that equal blocks tie whatever their seconds."""


@dataclass(frozen=True)
class Balanced:
    """The largest stage as small as can be, then all as equal as can be (the least sum of squares, which is the
    variance that GPipe's partitioning minimises), then the remainder with the later tiers.

    Work is a block's share in its model, so tiers count as equal however fast they are: GPipe knows like devices. It
    knows no memory either; here what does not fit goes where there is room, so that the baseline is as strong as its
    paper allows.
    """

    def divide(self, problem: Problem) -> Ends:
        """Two dynamic programmes of O(T N^2)."""
        import numpy as np

        work = between([0.0, *np.cumsum(works(problem)).tolist()])
        allowed = [held(problem, tier, empty=False) for tier in range(len(problem.tiers))]
        largest = cheapest([np.where(each, work, np.inf) for each in allowed], np.maximum)
        if largest is None:
            raise refusal(problem)
        even = cheapest([np.where(each & (work <= largest.cost), work**2, np.inf) for each in allowed], np.add)
        assert even is not None
        return even.ends


def works(problem: Problem) -> tuple[int, ...]:
    """Of each block, in `UNIT`s of a mean block: its share of its tier's seconds, in the mean over tiers."""
    shares = [_shares(row) for row in problem.seconds]
    return tuple(round(UNIT * fsum(column) / len(shares)) for column in zip(*shares, strict=True))


def _shares(seconds: tuple[float, ...]) -> list[float]:
    """Blocks that take no time are alike."""
    mean = fsum(seconds) / len(seconds)
    return [value / mean if mean else 1.0 for value in seconds]
