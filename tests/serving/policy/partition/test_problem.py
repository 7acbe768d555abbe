"""Partition problems, and the errors where there is no split."""

import re

import pytest

from serving.policy.partition.baselines import GPipeSplit, GreedySplit
from serving.policy.partition.hypsplit import HypSplit
from serving.policy.partition.optimum import OptimalSplit
from serving.policy.partition.problem import PartitionProblem, PartitionStrategy

GB = 2**30
STRICT = [HypSplit(), GPipeSplit(), GreedySplit(), GreedySplit("front")]
ALL = [*STRICT, OptimalSplit(), OptimalSplit("throughput", rate_per_s=0.001)]


def problem(**changed) -> PartitionProblem:
    fields = {
        "tiers": ("nano", "nx"),
        "block_s": ((1.0, 2.0, 4.0), (0.5, 1.0, 2.0)),
        "block_nbytes": ((1.0 * GB, 2.0 * GB, 3.0 * GB), (0.5 * GB, 1.0 * GB, 1.5 * GB)),
        "memory_nbytes": (3.0 * GB, 2.5 * GB),
        "node_counts": (2, 1),
    }
    return PartitionProblem(**(fields | changed))


def test_stage_times_and_bytes_are_sums_of_blocks():
    made = problem(hidden_transfer_s=(0.25,), token_transfer_s=(0.125,))
    assert made.stage_s((1, 3)) == (1.0, 3.0)
    assert made.single_request_s((1, 3)) == 4.25
    assert made.single_request_s((0, 3)) == 3.625
    assert made.bottleneck_s((2, 3)) == 2.0
    assert made.bottleneck_s((1, 3)) == 3.0
    assert made.slowest_stage_s((2, 3)) == 3.0
    assert (made.communication_s((1, 3)), made.communication_s((0, 3))) == (0.25, 0.125)
    assert made.range_nbytes(0, 0, 2) == 3.0 * GB
    assert made.fits(0, 0, 2)
    assert not made.fits(0, 1, 3)


@pytest.mark.parametrize("ends", [(1,), (1, 2), (4, 3), (1, 2, 3), (-1, 3)])
def test_split_points_of_no_split_are_refused(ends):
    with pytest.raises(ValueError, match="divide nothing: 2 tiers need as many ends, none below the one before, the "):
        problem().stage_s(ends)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tiers": ()}, "there is nothing to divide"),
        ({"block_s": ((), ())}, "there is nothing to divide"),
        ({"node_counts": (1,)}, "node_counts has 1 entries for 2 tiers (nano, nx)"),
        ({"block_s": ((1.0,),)}, "block_s has 1 entries for 2 tiers"),
        ({"block_nbytes": ((1.0, 1.0, 1.0), (1.0,))}, "block_nbytes of nx has 1 entries for 3 blocks"),
        ({"block_s": ((1.0, -2.0, 4.0), (1.0, 1.0, 1.0))}, "block_s of nano has -2.0 in place 1; give a finite"),
        ({"block_s": ((1.0, 2.0, 4.0), (1.0, float("nan"), 1.0))}, "block_s of nx has nan in place 1"),
        ({"memory_nbytes": (1.0, float("nan"))}, "memory_nbytes of nx is nan; it is 0 or more, inf if not known"),
        ({"memory_nbytes": (-1.0, 1.0)}, "memory_nbytes of nano is -1.0"),
        ({"node_counts": (1, 0)}, "nx has 0 nodes; a tier needs at least 1"),
        ({"hidden_transfer_s": (1.0, 1.0)}, "hidden_transfer_s has 2 entries; 2 tiers have one fewer links"),
        ({"token_transfer_s": (float("inf"),)}, "token_transfer_s has inf in place 0"),
    ],
)
def test_figures_of_wrong_shape_or_value_are_refused(changed, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        problem(**changed)


def refused(split: PartitionStrategy, made: PartitionProblem) -> str:
    with pytest.raises(ValueError, match=r"^partition: ") as said:
        split.solve(made)
    return str(said.value).removeprefix("partition: ")


@pytest.mark.parametrize("split", STRICT, ids=repr)
def test_fewer_blocks_than_tiers_are_refused(split):
    made = PartitionProblem(("nano", "nx", "agx"), ((1.0, 1.0),) * 3, ((1.0, 1.0),) * 3, (9.0,) * 3, (1,) * 3)
    assert refused(split, made) == (
        "2 blocks leave less than one for each of 3 tiers (nano, nx, agx); name fewer tiers."
    )
    assert OptimalSplit().solve(made)[-1] == 2


@pytest.mark.parametrize("split", STRICT, ids=repr)
@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ((0.75, 9), "nano cannot hold even one block: block 1 of 3 takes 1 GB, a node has 0.75 GB."),
        ((9, 1), "nx cannot hold even one block: block 3 of 3 takes 1.5 GB, a node has 1 GB."),
    ],
)
def test_a_tier_too_small_for_any_block_is_refused(split, memory, said):
    text = refused(split, problem(memory_nbytes=tuple(each * float(GB) for each in memory)))
    assert text.startswith(said)
    assert text.endswith("give a tier more memory, or add a tier, or leave " + said.split()[0] + " out.")


def test_a_middle_tier_too_small_for_any_block_is_refused():
    sizes = tuple(each * float(GB) for each in (1, 5, 3, 4, 1))
    made = PartitionProblem(
        ("a", "b", "c"), ((1.0,) * 5,) * 3, (sizes,) * 3, (99.0 * GB, 2.0 * GB, 99.0 * GB), (1,) * 3
    )
    said = "b cannot hold even one block: the smallest that it could have, block 3 of 5 takes 3 GB, a node has 2 GB."
    assert refused(HypSplit(), made).startswith(said)


@pytest.mark.parametrize("split", ALL, ids=repr)
def test_a_model_larger_than_all_tiers_is_refused(split):
    made = problem(memory_nbytes=(2.5 * GB, 2.0 * GB))
    assert refused(split, made) == (
        "the tiers' memory does not hold the model. Filled from the front: nano 1 block (1 GB of 2.5 GB); nx 1 block "
        "(1 GB of 2 GB); 1 block of 3 left over, which nx would need 1.5 GB more for. Keep the weights in fewer bits "
        "(precision), give a tier more memory, or add a tier."
    )


def test_a_block_larger_than_every_tier_is_refused():
    made = problem(block_nbytes=((9.0 * GB,) * 3, (8.0 * GB,) * 3))
    assert "nano none (block 1 takes 9 GB of 3 GB); nx none (block 1 takes 8 GB of 2.5 GB); 3 blocks of 3 left " in (
        refused(OptimalSplit(), made)
    )


def test_an_empty_tier_between_two_others_is_refused():
    """The first tier reaches block 2, the last one could have the rest, the middle one only what lies further on."""
    sizes = ((1, 1, 1, 1, 1, 1), (3, 3, 3, 1, 1, 1), (1, 1, 3, 3, 1, 1))
    nbytes = tuple(tuple(each * float(GB) for each in row) for row in sizes)
    made = PartitionProblem(("a", "b", "c"), ((1.0,) * 6,) * 3, nbytes, (2.0 * GB, 2.0 * GB, 9.0 * GB), (1,) * 3)
    text = refused(HypSplit(), made)
    assert "a 2 blocks (2 GB of 2 GB); b none (block 3 takes 3 GB of 2 GB); c 4 blocks (8 GB of 9 GB)" in text
    assert "; b would have no block. " in text
    assert OptimalSplit().solve(made) in ((1, 1, 6), (2, 2, 6))
