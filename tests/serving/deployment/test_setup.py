"""What is refused before any work, with the arithmetic."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.core.decoding import Decoding
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.offload import AlwaysOffload
from serving.policy.slots.placement import CloudPlacement, UShapedPlacement
from tests.support.conf_files import bed
from tests.support.fake_setup import pair, setup
from tests.support.simulated_tiers import division, tiers


def test_a_setup_of_the_default_hardware_fits() -> None:
    made = setup()
    assert made.uses_target
    assert made.num_devices == 2


def test_a_model_that_does_not_fit_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(
        ValueError, match=r"llama2_70b does not fit into rtx_a6000 \(48.00 GB\) in fp16: weights 128.48 GB \+ KV"
    ):
        setup(pair=pair(cloud="llama2_70b"))
    with pytest.raises(ValueError, match="llama2_13b does not fit into jetson_orin_nano_8gb"):
        setup(hardware="jetson_orin_nano", pair=pair(device="llama2_13b"))


def test_draft_caches_that_a_device_keeps_must_fit_into_its_memory() -> None:
    def kept(sessions: int) -> dict[str, Any]:
        return {"hardware": "jetson_orin_nano", "override": {"kv_cache": PrefixCaching(device_idle_sessions=sessions)}}

    assert setup("sled", **kept(1)).uses_target
    with pytest.raises(ValueError, match=r"does not fit into jetson_orin_nano_8gb.*100001 sessions x 40 tokens"):
        setup("sled", **kept(100_000))


def test_only_what_runs_must_fit() -> None:
    assert not setup("edge_centric", pair=pair(cloud="llama2_70b")).uses_target
    assert setup("cloud_centric", hardware="jetson_orin_nano", pair=pair(device="llama2_13b")).uses_target


def test_the_cloud_caches_what_its_memory_leaves_beside_the_weights() -> None:
    tokens = setup().cloud_cache_tokens
    weights, a_token = 26_031_728_640, 2 * 40 * 5120 * 2
    assert tokens == (48 * 2**30 - weights) // a_token


def test_an_unknown_memory_is_no_limit() -> None:
    cloud = replace(bed("jetson_orin").cloud, chip=replace(bed("jetson_orin").cloud.chip, memory_gb=None))
    assert setup(hardware=replace(bed("jetson_orin"), cloud=cloud)).cloud_cache_tokens == float("inf")


def test_a_cache_budget_that_no_request_fits_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"capacity_tokens is 30, and one request may need 48 \(workload.max_prompt_tokens"
    ):
        setup(override={"kv_cache": PrefixCaching(30.0)})
    assert setup(override={"kv_cache": PrefixCaching(48.0)}).uses_target


def test_a_placement_on_an_unknown_tier_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"policy.placement: there is no tier 'edge' in the testbed; there are here and cloud"
    ):
        setup(override={"placement": CloudPlacement("edge")})


def test_the_number_of_devices_is_the_workloads_or_the_testbeds() -> None:
    assert setup(devices=7).num_devices == 7
    assert setup(hardware="hat", devices=None).num_devices == 30


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"temperature": -0.1}, r"decoding.temperature is -0.1; it is 0 \(greedy\), or 1e-06 or more"),
        ({"temperature": 1e-40}, "decoding.temperature is 1e-40"),
        ({"top_k": -1}, r"decoding.top_k is -1; it is 0 \(all tokens\) or more"),
        ({"top_p": 0.0}, "decoding.top_p is 0.0; it is a share"),
        ({"top_p": 1.5}, "decoding.top_p is 1.5"),
    ],
)
def test_decoding_out_of_range_is_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Decoding(**how)


def test_exact_decoding_is_refused_where_others_compute() -> None:
    own = pair()
    shared = replace(own, cloud=replace(own.cloud, tensor_parallel=2))
    with pytest.raises(
        ValueError, match=r"decoding\.exact is true, and several processes compute the cloud's model in an order"
    ):
        replace(setup(), pair=shared, decoding=Decoding(exact=True))


def test_exact_decoding_of_a_policy_that_never_asks_the_cloud_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"decoding\.exact is true, and has no effect: .* policy edge_centric never asks"
    ):
        replace(setup("edge_centric"), decoding=Decoding(exact=True)).check_decoding_used()
    replace(setup("cloud_centric"), decoding=Decoding(exact=True)).check_decoding_used()


def test_greedy_is_the_absence_of_sampling() -> None:
    assert Decoding().sampling(3) is None
    drawn = Decoding(0.8, 50, 0.9).sampling(3)
    assert drawn is not None
    assert (drawn.temperature, drawn.top_k, drawn.top_p, drawn.seed) == (0.8, 50, 0.9, 3)


@pytest.mark.parametrize(("policy", "read"), [("cloud_centric", False), ("sled", True), ("edge_centric", True)])
def test_the_devices_model_is_not_read_where_no_model_drafts(policy: str, read: bool) -> None:
    made = setup(policy)
    assert made.reads_device_model is read
    assert made.models.device.path == (made.pair.device.path if read else made.pair.cloud.path)
    assert made.models.device.timed_architecture == made.pair.device.timed_architecture
    assert made.unread_artifacts[:1] == (() if read else (made.pair.device.path,))


def test_a_request_fits_into_the_clouds_memory_in_whole_blocks() -> None:
    made = setup(override={"kv_cache": PrefixCaching(block_tokens=16)})
    assert made.allocated_tokens == -(-made.workload.context_tokens // 16) * 16
    with pytest.raises(ValueError, match=r"KV cache .*1 sessions x 1048576 tokens"):
        setup(override={"kv_cache": PrefixCaching(block_tokens=1 << 20)})


def test_a_chip_that_cannot_time_the_devices_part_of_the_target_is_refused() -> None:
    with pytest.raises(ValueError, match="no coefficients for llama2_13b"):
        setup("u_shape", hardware="wisp")


def test_a_device_holds_its_part_of_the_target_and_a_drafter_of_its_own() -> None:
    orin, split = bed("jetson_orin_nano").device, {"placement": UShapedPlacement(2)}
    tight = replace(orin, chip=replace(orin.chip, memory_gb=2.6))
    where = replace(bed("jetson_orin_nano"), device=tight)
    shared = replace(pair().device, adapter=Path("adapter"))
    assert setup("hat", hardware=where, pair=replace(pair(), device=shared), override=split).uses_target
    with pytest.raises(ValueError, match=r"llama2_13b.* with tinyllama_1_1b does not fit"):
        setup("hat", hardware=where, override=split)


def test_a_partition_and_stages_of_a_pipeline_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="pipeline_stages is 4, and a partition divides the middle"):
        UShapedPlacement(2, 4, partition=division(tiers(1, 1)))


class OneText(AlwaysOffload):
    """A class of a user's whose tuple lacks its comma."""

    requested_scores = "margin"  # type: ignore[assignment]


def test_scores_that_are_named_by_a_text_are_refused_with_the_tuple_that_was_meant() -> None:
    with pytest.raises(ValueError, match=r"of OneText is the text 'margin'; a tuple is wanted: \('margin',\)"):
        setup("sled", override={"offload": OneText()})
