"""Each strategy on instances that can be checked by hand, the paper's among them."""

import pytest

from serving.policy.partition.baselines import WORK_UNITS_PER_BLOCK, GPipeSplit, GreedySplit, block_work
from serving.policy.partition.hypsplit import HypSplit, tau_bounds_s
from serving.policy.partition.optimum import OptimalSplit
from serving.policy.partition.problem import PartitionProblem

INF = float("inf")


def alike(blocks: int, block_s: tuple[float, ...], memory: tuple[float, ...] | None = None, **more) -> PartitionProblem:
    """Equal blocks of one byte; `memory` in blocks."""
    tiers = tuple(f"tier{j}" for j in range(len(block_s)))
    rows = tuple((each,) * blocks for each in block_s)
    more.setdefault("node_counts", (1,) * len(tiers))
    return PartitionProblem(tiers, rows, ((1.0,) * blocks,) * len(tiers), memory or (INF,) * len(tiers), **more)


@pytest.mark.parametrize(
    ("blocks", "gbps", "ends"),
    [
        (32, (68.3, 102.4, 204.8), (5, 14, 32)),
        (32, (102.4, 102.4, 204.8), (8, 16, 32)),
        (40, (68.3, 102.4, 204.8), (7, 18, 40)),
    ],
)
def test_hypsplit_on_the_paper_s_orins(blocks, gbps, ends):
    """By memory bandwidth: Orin Nano, Orin NX, AGX Orin. Table II has 5, 9 and 18 blocks for Llama-3-8B, which the
    first row gives; the Nano's Super mode would not, nor do the 7, 13 and 20 for Phi-3-medium follow from bandwidth.
    """
    problem = alike(blocks, tuple(0.4362 * 128 / each for each in gbps), (16.0, 33.0, 68.0))
    assert HypSplit().solve(problem) == ends


def test_hypsplit_finds_a_split_where_the_printed_algorithm_returns_null():
    """All splits lie within epsilon below the upper bound, so that no tried tau is feasible, or none is tried."""
    problem = alike(2, (0.5, 1.0))
    assert tau_bounds_s(problem) == (0.5, 2.0)
    assert HypSplit(epsilon_s=5.0).solve(problem) == (1, 2)


def test_ties_put_more_blocks_on_later_tiers():
    assert HypSplit().solve(alike(8, (1.0, 1.0, 1.0))) == (2, 5, 8)
    assert HypSplit().solve(alike(8, (1.0, 1.0, 4.0))) == (3, 7, 8)


def test_hypsplit_ends_where_no_float_lies_between():
    assert HypSplit(1e-300).solve(alike(7, (0.125, 0.375))) == (5, 7)


def test_balanced_stages_differ_by_at_most_one_block():
    for count, blocks, ends in ((3, 32, (10, 21, 32)), (3, 40, (13, 26, 40)), (5, 32, (6, 12, 18, 25, 32))):
        assert GPipeSplit().solve(alike(blocks, tuple(0.1 * (j + 1) for j in range(count)))) == ends


def test_balanced_stages_ignore_tier_speeds_but_not_block_costs():
    problem = alike(4, (1.0, 10.0))
    assert GPipeSplit().solve(problem) == (2, 4)
    heavy = PartitionProblem(
        ("a", "b"), ((1.0, 1.0, 1.0, 3.0), (7.0, 7.0, 7.0, 21.0)), problem.block_nbytes, (INF, INF), (1, 1)
    )
    assert block_work(heavy) == (round(WORK_UNITS_PER_BLOCK * 2 / 3),) * 3 + (2 * WORK_UNITS_PER_BLOCK,)
    assert GPipeSplit().solve(heavy) == (3, 4)
    assert block_work(alike(3, (0.0, 0.1))) == (WORK_UNITS_PER_BLOCK,) * 3


def test_blocks_beyond_a_balanced_stages_memory_move_to_other_tiers():
    assert GPipeSplit().solve(alike(32, (1.0, 1.0, 1.0), (4.0, 20.0, 20.0))) == (4, 18, 32)


def test_greedy_fills_the_fastest_tier_first_and_leaves_every_other_one_a_block():
    problem = alike(32, (3.0, 2.0, 1.0), (7.0, 16.0, 20.0))
    assert GreedySplit().solve(problem) == (1, 12, 32)
    assert GreedySplit("front").solve(problem) == (7, 23, 32)
    assert GreedySplit().solve(alike(32, (3.0, 2.0, 1.0))) == (1, 2, 32)
    assert GreedySplit().solve(alike(32, (1.0, 1.0, 1.0))) == (30, 31, 32)


def test_a_lone_request_is_best_served_by_the_fastest_tier_and_pays_only_for_tokens_on_the_way():
    links = {"hidden_transfer_s": (1.0, 1.0), "token_transfer_s": (0.125, 0.25)}
    problem = alike(8, (3.0, 2.0, 1.0), **links)
    assert OptimalSplit().solve(problem) == (0, 0, 8)
    assert problem.single_request_s((0, 0, 8)) == 8 + 0.375
    assert problem.single_request_s((0, 4, 8)) == 8 + 4 + 1.125
    assert problem.single_request_s((8, 8, 8)) == 24 + 0.375
    assert problem.single_request_s((4, 4, 8)) == 12 + 4 + 2.0


def test_memory_moves_blocks_to_the_next_fastest_tier():
    assert OptimalSplit().solve(alike(8, (3.0, 2.0, 1.0), (8.0, 8.0, 5.0))) == (0, 3, 8)


def test_an_expensive_link_justifies_slower_blocks():
    problem = alike(8, (1.0, 1.5), (6.0, 8.0), hidden_transfer_s=(5.0,), token_transfer_s=(0.0,))
    assert OptimalSplit().solve(problem) == (0, 8)


def test_throughput_counts_a_tier_s_nodes_and_latency_does_not():
    problem = alike(8, (1.0, 1.0), node_counts=(3, 1))
    assert OptimalSplit("throughput").solve(problem) == (6, 8)
    assert problem.bottleneck_s((6, 8)) == 2.0
    assert OptimalSplit().solve(alike(8, (1.0, 1.1), node_counts=(3, 1))) == (8, 8)


def test_equally_fast_splits_go_to_the_one_of_more_throughput():
    assert OptimalSplit().solve(alike(8, (0.1, 0.1))) == (4, 8)


def test_a_rate_takes_blocks_off_the_fastest_tier():
    problem = alike(8, (3.0, 1.0))
    assert OptimalSplit(rate_per_s=0.1).solve(problem) == (0, 8)
    assert OptimalSplit(rate_per_s=0.13).solve(problem) == (2, 8)
    with pytest.raises(ValueError, match=r"keeps up with rate_per_s=1 at max_utilisation=0\.9\. The best one carries "):
        OptimalSplit(rate_per_s=1.0).solve(problem)
    assert (
        OptimalSplit(rate_per_s=1.0, strict=False).solve(problem) == OptimalSplit("throughput").solve(problem) == (2, 8)
    )


def test_partitions_are_importable_without_numpy():
    import subprocess
    import sys

    names = ("problem", "hypsplit", "optimum", "baselines", "costs")
    modules = ", ".join(f"serving.policy.partition.{name}" for name in names)
    code = f"import sys, {modules}; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
