"""What dividing 200 blocks over 8 tiers takes, against Algorithm 1's triple loop as it is printed."""

import random
import statistics
import time
from collections.abc import Callable

from serving.policy.partition.baselines import GPipeSplit, GreedySplit
from serving.policy.partition.hypsplit import HypSplit, tau_bounds_s
from serving.policy.partition.optimum import OptimalSplit
from serving.policy.partition.problem import PartitionProblem, PartitionStrategy, SplitPoints

BLOCKS, TIERS = 200, 8
RUNS, ALGORITHM_1_RUNS = 30, 10
MIN_SPEEDUP = 5.0
"""How many times faster than the triple loop, at least."""
STRATEGIES: dict[str, PartitionStrategy] = {
    "HypSplit": HypSplit(),
    "Optimum, latency": OptimalSplit(),
    "Optimum, throughput": OptimalSplit("throughput"),
    "Greedy": GreedySplit(),
    "Balanced": GPipeSplit(),
}


def main() -> bool:
    printed_ms, wanted = _timed(algorithm_1, ALGORITHM_1_RUNS)
    print(f"partition of {BLOCKS} blocks over {TIERS} tiers: ms, median of {RUNS} random instances (least to most)")
    for name, split in STRATEGIES.items():
        took_ms, found = _timed(split.solve, RUNS)
        if name == "HypSplit":
            gain, same = statistics.median(printed_ms) / statistics.median(took_ms), found[:ALGORITHM_1_RUNS] == wanted
        print(f"  {name:<20}{_format_range(took_ms)}")
    print(f"  {'as printed':<20}{_format_range(printed_ms)}")
    print(
        f"  HypSplit is {gain:.0f} times faster than the printed loop (at least {MIN_SPEEDUP:g}), same splits: {same}"
    )
    return same and gain >= MIN_SPEEDUP


def algorithm_1(problem: PartitionProblem) -> SplitPoints | None:
    """Algorithm 1, lines 3 to 33, with HypSplit's bounds, and the upper one checked first as HypSplit does."""
    low_s, high_s = tau_bounds_s(problem)
    ends = _feasible_split(problem, high_s)
    while high_s - low_s > HypSplit().epsilon_s:
        middle_s = (low_s + high_s) / 2
        found = _feasible_split(problem, middle_s)
        if found:
            high_s, ends = middle_s, found
        else:
            low_s = middle_s
    return ends


def _feasible_split(problem: PartitionProblem, tau_s: float) -> SplitPoints | None:
    """Lines 8 to 24, and backtracking (line 28)."""
    count, blocks = len(problem.tiers), problem.num_blocks
    reached = [[False] * (blocks + 1) for _ in range(count + 1)]
    before = [[0] * (blocks + 1) for _ in range(count + 1)]
    reached[0][0] = True
    for j in range(1, count + 1):
        seconds, nbytes, memory = problem.prefix_s[j - 1], problem.prefix_nbytes[j - 1], problem.memory_nbytes[j - 1]
        for n in range(j, blocks + 1):
            for k in range(j - 1, n):
                if reached[j - 1][k] and seconds[n] - seconds[k] <= tau_s and nbytes[n] - nbytes[k] <= memory:
                    reached[j][n], before[j][n] = True, k
                    break
    if not reached[count][blocks]:
        return None
    ends = [blocks]
    for j in range(count, 1, -1):
        ends.append(before[j][ends[-1]])
    return tuple(reversed(ends))


def _timed(
    divide: Callable[[PartitionProblem], SplitPoints | None], runs: int
) -> tuple[list[float], list[SplitPoints | None]]:
    """Milliseconds and splits of the same instances, made anew so that their prefix sums are summed each time."""
    took_ms, found = [], []
    divide(_random_problem(runs))
    for seed in range(runs):
        problem = _random_problem(seed)
        began = time.perf_counter()
        found.append(divide(problem))
        took_ms.append(1e3 * (time.perf_counter() - began))
    return took_ms, found


def _random_problem(seed: int) -> PartitionProblem:
    """Unequal blocks, tiers of other speeds, and memory that binds on some of them."""
    dice = random.Random(seed)
    paces_s = [dice.uniform(0.01, 0.1) for _ in range(TIERS)]
    work = [dice.uniform(0.5, 1.5) for _ in range(BLOCKS)]
    nbytes = tuple(dice.uniform(0.5, 1.5) for _ in range(BLOCKS))
    return PartitionProblem(
        tiers=tuple(f"tier {j + 1}" for j in range(TIERS)),
        block_s=tuple(tuple(pace_s * each for each in work) for pace_s in paces_s),
        block_nbytes=(nbytes,) * TIERS,
        memory_nbytes=(1.5 * BLOCKS / TIERS,) * TIERS,
        node_counts=tuple(dice.randint(1, 4) for _ in range(TIERS)),
        hidden_transfer_s=(0.05,) * (TIERS - 1),
        token_transfer_s=(0.001,) * (TIERS - 1),
    )


def _format_range(took_ms: list[float]) -> str:
    return f"{statistics.median(took_ms):8.2f} ({min(took_ms):.2f} to {max(took_ms):.2f})"


if __name__ == "__main__":
    raise SystemExit(not main())
