"""Stages of equal work, as GPipe's: the paper's second baseline (Hyperion, section V-A)."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

from serving.policy.partition.infeasibility import refusal
from serving.policy.partition.path import cheapest
from serving.policy.partition.problem import Ends, Problem
from serving.policy.partition.windows import between, held

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
