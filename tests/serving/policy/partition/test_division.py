"""How a model is divided over a testbed: the speeds of tiers, and the paper's divisions."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from serving.hardware.testbed import Tier
from serving.policy.partition.baselines import GPipeSplit
from serving.policy.partition.division import ModelPartition
from serving.policy.partition.hypsplit import HypSplit
from serving.policy.partition.optimum import OptimalSplit
from tests.support.conf_files import architecture, bed, fleet, link

LAN = link("lan_1gbps")
NANO, NX, AGX = "jetson_orin_nano_8gb_super", "jetson_orin_nx_16gb", "jetson_agx_orin_32gb"


def division(name: str = "llama3_8b", hardware: str = "hyperion", **how: Any) -> ModelPartition:
    given = {"strategy": HypSplit(), "prompt_tokens": 64, "new_tokens": 128, "tiers": bed(hardware).tiers}
    return ModelPartition(architecture=architecture(name), network=LAN, **(given | how))


def sizes(made: ModelPartition) -> tuple[int, ...]:
    return tuple(b - a for a, b in pairwise((0, *made.split_points)))


@pytest.mark.parametrize(("name", "expected"), [("llama3_8b", (5, 12, 15)), ("phi3_medium", (6, 15, 19))])
def test_capacities_by_flops_give_the_papers_kind_of_division(name: str, expected: tuple[int, ...]) -> None:
    """Table II has 5, 9, 18 and 7, 13, 20 of 32 and 40 blocks: 67, 157 and 200 TOPS do not give these."""
    assert sizes(division(name, capacity="flops", include_embed_head=False)) == expected


def speeds(**how: Any) -> list[float]:
    """How much faster each tier's second block is than the first tier's."""
    rows = division(**how).problem().block_s
    return [rows[0][1] / row[1] for row in rows]


def test_each_capacity_reads_its_own_figure() -> None:
    chips = [tier.nodes.power_mode for tier in bed("hyperion").tiers.values()]
    assert speeds(capacity="flops") == pytest.approx([1, 157 / 67, 200 / 67])
    assert speeds(capacity="dense") == pytest.approx([c.fp16_tflops / chips[0].fp16_tflops for c in chips])
    assert speeds(capacity="bandwidth") == pytest.approx([c.memory_gbps / chips[0].memory_gbps for c in chips])


def test_flops_are_the_blocks_over_the_tops_times_the_chips() -> None:
    shape = architecture("llama3_8b")
    found = division(capacity="flops", include_embed_head=False, prompt_tokens=1, new_tokens=1,
                     tiers={"a": Tier(fleet(AGX, tensor_parallel=2))}).problem()  # fmt: skip
    weights = shape.part(1, embedding=False, lm_head=False).parameters()
    attention = 4 * shape.heads * shape.head_dim
    assert found.block_s[0][0] == pytest.approx((2 * weights + attention) / 400e12, rel=1e-3)


def test_bandwidth_capacities_count_reads_of_the_weights() -> None:
    """A pass reads one row of the embedding, which the first block holds, and the whole head."""
    made = division(capacity="bandwidth", new_tokens=10, tiers={"a": Tier(fleet(AGX))})
    row = made.problem().block_s[0]
    block = architecture("llama3_8b").part(1, embedding=False, lm_head=False).weights_nbytes("fp16")
    assert row[0] == row[1] == pytest.approx(10 * block / 204.7e9, rel=1e-3)
    assert row[-1] > row[1]


def test_profiled_capacities_follow_the_latency_coefficients() -> None:
    from serving.hardware.latency import batch_load

    alone = fleet(NX, mode="MAXN_SUPER")
    shape = architecture("llama3_8b")
    made = division(prompt_tokens=20, new_tokens=5, tiers={"a": Tier(alone)})
    latency = alone.latency(shape)
    passes = [batch_load(shape.layers, [(0, 20)], 1)]
    passes += [batch_load(shape.layers, [(20 + i, 1)], 1) for i in range(4)]
    passes = [each._replace(num_continued=1) for each in passes]  # what starts a pass is no block's
    assert sum(made.problem().block_s[0]) == pytest.approx(sum(latency.seconds(each) for each in passes))
    blocks = [each._replace(head_tokens=0) for each in passes]
    bare = replace(made, include_embed_head=False).problem()
    assert sum(bare.block_s[0]) == pytest.approx(sum(latency.seconds(each) for each in blocks))


@pytest.mark.parametrize(
    ("capacity", "figure"), [("flops", "headline_tops"), ("dense", "fp16_tflops"), ("bandwidth", "memory_gbps")]
)
def test_a_chip_without_the_figure_is_refused(capacity: Any, figure: str) -> None:
    mode = replace(fleet("local").power_mode, fp16_tflops=None, memory_gbps=None, headline_tops=None)
    bare = fleet("local")
    bare = replace(bare, chip=replace(bare.chip, headline_tops=None, modes={bare.mode_name: mode}))
    made = division(capacity=capacity, tiers={"a": Tier(bare)})
    with pytest.raises(ValueError, match=rf"partition\.capacity wants {figure} of local .* such as profiled"):
        made.split_points  # noqa: B018 - it is made when asked for


def test_a_testbed_without_tiers_is_refused() -> None:
    with pytest.raises(ValueError, match="divides a model over tiers, and this testbed has none; choose hardware=hyp"):
        division(tiers={}).split_points  # noqa: B018 - it is made when asked for


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="nano"):
        division("llama2_70b").split_points  # noqa: B018 - it is made when asked for


def test_a_tier_has_the_speed_of_its_fastest_and_the_memory_of_its_largest_node() -> None:
    """Eq. 4 and 5, which may be two different ones."""
    small, large = fleet("rtx_a6000"), fleet("jetson_agx_orin_64gb")
    mixed = division(tiers={"a": Tier(small, (large,)), "b": Tier(large)}).problem()
    fast = division(tiers={"a": Tier(small), "b": Tier(large)}).problem()
    roomy = division(tiers={"a": Tier(large), "b": Tier(large)}).problem()
    assert mixed.block_s[0] == fast.block_s[0] != roomy.block_s[0]
    assert mixed.memory_nbytes[0] == roomy.memory_nbytes[0] > fast.memory_nbytes[0]
    assert mixed.node_counts == (2, 1)


def test_links_are_charged_with_the_prompt_and_one_hidden_state_a_token() -> None:
    slow = link("lan_100mbps")
    found = bed("hyperion").tiers
    found["agx"] = replace(found["agx"], link=slow)
    problem = division(tiers=found).problem()
    row = 2 * 4096
    assert problem.hidden_transfer_s == pytest.approx(
        [each.mean_transfer_s(64 * row, "up") + 127 * each.mean_transfer_s(row, "up") for each in (LAN, slow)]
    )
    assert problem.token_transfer_s == pytest.approx(
        [each.mean_transfer_s(64 * 4, "up") + 127 * each.mean_transfer_s(4, "up") for each in (LAN, slow)]
    )


@pytest.mark.parametrize("capacity", ["profiled", "flops", "bandwidth"])
def test_the_printed_latency_is_the_slowest_tier_and_the_links(capacity: Any) -> None:
    """Eq. 8 to 10a in seconds of the tiers' own times, whatever the split was made by."""
    made = division(capacity=capacity, include_embed_head=False)
    own = division(include_embed_head=True).problem()
    stages, links = own.stage_s(made.split_points), sum(own.hidden_transfer_s)
    assert made.printed_latency == {
        "slowest_stage_s": max(stages),
        "communication_s": pytest.approx(links),
        "printed_latency_s": pytest.approx(max(stages) + links),
    }
    assert made.printed_latency["printed_latency_s"] < own.single_request_s(made.split_points)


def test_the_cloud_part_of_a_u_shape_has_no_embedding_and_head() -> None:
    made = division(strategy=GPipeSplit())
    whole, inner = made.problem(), made.problem(2, include_embed_head=False)
    assert inner.num_blocks == whole.num_blocks - 2
    assert len(set(inner.block_s[0])) == 1
    assert made.split_points_from(2)[-1] == 30


def test_tiers_may_be_left_out_of_the_path() -> None:
    """A lone request of few tokens is served fastest by the fastest chip alone."""
    made = division(strategy=OptimalSplit("latency"), prompt_tokens=16, new_tokens=2)
    assert made.blocks_by_tier(made.split_points) == {"agx": (0, 32)}
    assert made.blocks_by_tier((5, 5, 32)) == {"nano": (0, 5), "agx": (5, 32)}
