"""What dividing 200 blocks over 8 tiers takes, against Algorithm 1's triple loop as it is printed."""

import random
import statistics
import time
from collections.abc import Callable

from serving.policy.partition.baselines import Balanced, Greedy
from serving.policy.partition.hypsplit import HypSplit, bounds_s
from serving.policy.partition.optimum import Optimum
from serving.policy.partition.problem import Ends, Problem, Split

BLOCKS, TIERS = 200, 8
RUNS, PRINTED_RUNS = 30, 10
LEAST_GAIN = 5.0
"""How many times faster than the triple loop, at least."""
SPLITS: dict[str, Split] = {
    "HypSplit": HypSplit(),
    "Optimum, latency": Optimum(),
    "Optimum, throughput": Optimum("throughput"),
    "Greedy": Greedy(),
    "Balanced": Balanced(),
}


def main() -> bool:
    printed_ms, wanted = _timed(printed, PRINTED_RUNS)
    print(f"partition of {BLOCKS} blocks over {TIERS} tiers: ms, median of {RUNS} random instances (least to most)")
    for name, split in SPLITS.items():
        took_ms, found = _timed(split.divide, RUNS)
        if name == "HypSplit":
            gain, same = statistics.median(printed_ms) / statistics.median(took_ms), found[:PRINTED_RUNS] == wanted
        print(f"  {name:<20}{_spread(took_ms)}")
    print(f"  {'as printed':<20}{_spread(printed_ms)}")
    print(f"  HypSplit is {gain:.0f} times faster than the printed loop (at least {LEAST_GAIN:g}), same splits: {same}")
    return same and gain >= LEAST_GAIN


def printed(problem: Problem) -> Ends | None:
    """Algorithm 1, lines 3 to 33, with HypSplit's bounds, and the upper one checked first as HypSplit does."""
    low_s, high_s = bounds_s(problem)
    ends = _check(problem, high_s)
    while high_s - low_s > HypSplit().epsilon_s:
        middle_s = (low_s + high_s) / 2
        found = _check(problem, middle_s)
        if found:
            high_s, ends = middle_s, found
        else:
            low_s = middle_s
    return ends


def _check(problem: Problem, tau_s: float) -> Ends | None:
    """Lines 8 to 24, and backtracking (line 28)."""
    count, blocks = len(problem.tiers), problem.blocks
    reached = [[False] * (blocks + 1) for _ in range(count + 1)]
    before = [[0] * (blocks + 1) for _ in range(count + 1)]
    reached[0][0] = True
    for j in range(1, count + 1):
        seconds, nbytes, memory = problem.second_sums[j - 1], problem.nbyte_sums[j - 1], problem.memory_nbytes[j - 1]
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


def _timed(divide: Callable[[Problem], Ends | None], runs: int) -> tuple[list[float], list[Ends | None]]:
    """Milliseconds and splits of the same instances, made anew so that their prefix sums are summed each time."""
    took_ms, found = [], []
    divide(_instance(runs))
    for seed in range(runs):
        problem = _instance(seed)
        began = time.perf_counter()
        found.append(divide(problem))
        took_ms.append(1e3 * (time.perf_counter() - began))
    return took_ms, found


def _instance(seed: int) -> Problem:
    """Unequal blocks, tiers of other speeds, and memory that binds on some of them."""
    dice = random.Random(seed)
    paces_s = [dice.uniform(0.01, 0.1) for _ in range(TIERS)]
    work = [dice.uniform(0.5, 1.5) for _ in range(BLOCKS)]
    nbytes = tuple(dice.uniform(0.5, 1.5) for _ in range(BLOCKS))
    return Problem(
        tiers=tuple(f"tier {j + 1}" for j in range(TIERS)),
        seconds=tuple(tuple(pace_s * each for each in work) for pace_s in paces_s),
        nbytes=(nbytes,) * TIERS,
        memory_nbytes=(1.5 * BLOCKS / TIERS,) * TIERS,
        nodes=tuple(dice.randint(1, 4) for _ in range(TIERS)),
        hidden_s=(0.05,) * (TIERS - 1),
        token_s=(0.001,) * (TIERS - 1),
    )


def _spread(took_ms: list[float]) -> str:
    return f"{statistics.median(took_ms):8.2f} ({min(took_ms):.2f} to {max(took_ms):.2f})"


if __name__ == "__main__":
    raise SystemExit(not main())
