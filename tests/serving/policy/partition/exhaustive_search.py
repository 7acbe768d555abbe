"""Small instances, and every split of them with its costs by plain sums, as a reference for the strategies.

Figures are whole eighths, so that all sums are exact and ties are ties.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise

from hypothesis import strategies as st

from serving.policy.partition.problem import PartitionProblem, SplitPoints


@dataclass(frozen=True)
class Found:
    """A split within memory."""

    ends: SplitPoints
    counts: tuple[int, ...]
    slowest_s: float
    bottleneck_s: float
    lone_s: float


def every(problem: PartitionProblem, empty: bool = False) -> list[Found]:
    return [made for ends in _ends(problem, empty) if (made := _found(problem, ends))]


def _ends(problem: PartitionProblem, empty: bool) -> Iterator[SplitPoints]:
    for inner in combinations_with_replacement(range(problem.num_blocks + 1), len(problem.tiers) - 1):
        edges = (0, *inner, problem.num_blocks)
        if empty or all(a < b for a, b in pairwise(edges)):
            yield edges[1:]


def _found(problem: PartitionProblem, ends: SplitPoints) -> Found | None:
    windows = list(pairwise((0, *ends)))
    for (a, b), nbytes, memory in zip(windows, problem.block_nbytes, problem.memory_nbytes, strict=True):
        if sum(nbytes[a:b]) > memory:
            return None
    stages = [sum(row[a:b]) for (a, b), row in zip(windows, problem.block_s, strict=True)]
    lone_s = sum(stages)
    for j, (_, end) in enumerate(windows[:-1]):
        links = (
            problem.hidden_transfer_s
            if any(b > a for a, b in windows[: j + 1]) and end < problem.num_blocks
            else problem.token_transfer_s
        )
        lone_s += links[j] if links else 0.0
    loads = [stage_s / count for stage_s, count in zip(stages, problem.node_counts, strict=True)]
    return Found(ends, tuple(b - a for a, b in windows), max(stages), max(loads), lone_s)


def made(seed: int, blocks: int, tiers: int) -> PartitionProblem:
    """Equal and unequal blocks, tight, wide and unknown memory, with and without links; half have no strict split."""
    dice = random.Random(seed)

    def eighths(most: int, count: int) -> tuple[float, ...]:
        return tuple(dice.randint(0, most) / 8 for _ in range(count))

    equal, same = dice.random() < 0.3, dice.random() < 0.3
    work = (1.0,) * blocks if equal else eighths(40, blocks)
    size = (1.0,) * blocks if equal else eighths(24, blocks)
    speed = [dice.choice((1, 1, 2, 3, 8)) for _ in range(tiers)]
    seconds = tuple(tuple(value * each for value in (work if same else eighths(40, blocks))) for each in speed)
    nbytes = tuple(tuple(value * dice.choice((1, 1, 2)) for value in size) for _ in range(tiers))
    whole = max(sum(row) for row in nbytes)
    share = dice.choice((1.0, 2.0, 4.0, 8.0))
    memory = tuple(
        float("inf") if dice.random() < 0.1 else dice.randint(0, int(8 * share * whole / tiers) + 8) / 8
        for _ in range(tiers)
    )
    linked = dice.random() < 0.7
    return PartitionProblem(
        tuple("abcd"[:tiers]),
        seconds,
        nbytes,
        memory,
        tuple(dice.randint(1, 4) for _ in range(tiers)),
        eighths(16, tiers - 1) if linked else (),
        eighths(4, tiers - 1) if linked else (),
    )


PROBLEMS = st.builds(made, st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 4))
