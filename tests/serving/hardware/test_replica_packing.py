"""Packing factors: limits of memory and latency, and a comparison with Synera's Table 3."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.hardware.architecture import Architecture
from serving.hardware.fleet import GB, Fleet
from serving.hardware.latency import batch_load
from serving.hardware.replica_packing import REPORTED_FACTORS, ReplicaDemand, ReplicaPacking
from tests.support.conf_files import architecture, chip, names

A6000 = chip("rtx_a6000")
LLAMA2_70B = architecture("llama2_70b")
OURS = {
    "llama2_70b": 1.0, "llama2_13b": 7.5, "llama2_7b": 14.5, "tinyllama_1_1b": 90.5, "llama_160m": 527.0, "yi_34b": 2.5,
    "yi_6b": 16.5, "falcon_40b": 2.0, "falcon_7b": 12.0,
}  # fmt: skip
"""Figures of docs/synera.md: derived, on 8 RTX A6000."""


def packing(
    count: int = 8, reference: Architecture = LLAMA2_70B, factor_source="derived", every_s=60.0, **more
) -> ReplicaPacking:
    return ReplicaPacking(
        Fleet(A6000, count=count), reference, factor_source, ReplicaDemand(request_interval_s=every_s), **more
    )


def alone(count: int = 1, every_s: float = 60.0) -> ReplicaPacking:
    """A cluster too small for the usual reference."""
    return packing(count, architecture("tinyllama_1_1b"), every_s=every_s)


@pytest.mark.parametrize("name", REPORTED_FACTORS)
def test_derived_factors_lie_near_table_3(name):
    found = packing().factor(architecture(name))
    assert found is not None
    assert found.value == OURS[name]
    assert found.value == pytest.approx(REPORTED_FACTORS[name], rel=0.25)
    assert "8 rtx_a6000 in fp16, bound by memory" in found.source


def test_derived_factors_are_nearer_than_the_ratio_of_weights():
    def off(values: dict[str, float]) -> float:
        return sum(abs(values[name] / reported - 1) for name, reported in REPORTED_FACTORS.items()) / (
            len(REPORTED_FACTORS) - 1
        )

    weights = {name: LLAMA2_70B.parameters() / architecture(name).parameters() for name in REPORTED_FACTORS}
    assert off(OURS) == pytest.approx(0.113, abs=0.001)
    assert off(weights) == pytest.approx(0.185, abs=0.001)


def test_a_replica_needs_memory_for_weights_cache_and_one_forward():
    model = architecture("llama2_13b")
    copy = model.weights_nbytes("fp16") + 1024 * model.kv_nbytes_per_token("fp16")
    copy += model.activation_nbytes(960, "fp16")
    packed = packing().best_packing(model)
    assert (packed.num_replicas, packed.chips_per_replica, packed.limited_by) == (8 * 48 * GB // copy, 8, "memory")


def test_a_model_is_split_only_over_chips_that_divide_its_heads():
    assert architecture("falcon_7b").heads == 71
    assert packing().best_packing(architecture("falcon_7b")).chips_per_replica == 1
    assert alone(9).best_packing(architecture("llama2_13b")).chips_per_replica == 1  # 40 heads do not divide by 3 or 9


@given(every_s=st.floats(0.5, 100.0), name=st.sampled_from(["tinyllama_1_1b", "llama2_7b", "llama2_13b"]))
def test_one_replica_more_would_exceed_the_slowdown(every_s, name):
    """The rule, worked out the other way round from what a request takes."""
    model, made = architecture(name), alone(every_s=every_s)
    packed = made.best_packing(model)
    latency, overhead_s = made.cluster.latency(model), 64 * A6000.reached_by(None).forward_overhead_s
    alone_s = made.demand.seconds(latency)

    def slowdown(copies: int) -> float:
        busy = (copies - 1) * (alone_s - overhead_s) / every_s
        return (overhead_s + (alone_s - overhead_s) / (1 - busy)) / alone_s - 1 if busy < 1 else float("inf")

    assert slowdown(packed.num_replicas) <= 0.1 + 1e-9
    if packed.limited_by == "latency":
        assert slowdown(packed.num_replicas + 1) > 0.1 - 1e-9


def test_replicas_without_pauses_get_a_chip_each():
    busy = packing(every_s=0.001)
    assert [
        busy.best_packing(architecture(name)).num_replicas for name in ("llama_160m", "llama2_7b", "llama2_70b")
    ] == [8, 8, 2]


def test_a_request_takes_its_prefill_and_its_decodes():
    model, demand = architecture("tinyllama_1_1b"), ReplicaDemand(prompt_tokens=100, new_tokens=3)
    latency = Fleet(A6000).latency(model)
    passes = [batch_load(model.layers, [span], 1) for span in ((0, 100), (100, 1), (101, 1))]
    assert demand.seconds(latency) == pytest.approx(sum(map(latency.seconds, passes)))
    assert demand.tokens == 103


def test_factor_source_selects_reported_or_derived_factors():
    listed, other = architecture("llama2_13b"), architecture("qwen3_14b")
    reported = packing(factor_source="reported")
    assert reported.factor(listed).value == 6.0
    assert reported.factor(listed).source == "Synera, Table 3"
    assert packing().factor(listed).value == 7.5
    assert reported.factor(other) == packing().factor(other)
    assert reported.factor(other).source.startswith("derived: 13 replicas on 8 rtx_a6000")


def test_a_model_that_does_not_fit_has_no_factor():
    assert alone().factor(LLAMA2_70B) is None


def test_every_configured_architecture_has_a_factor():
    made = packing()
    assert all(made.factor(architecture(name)) for name in names("model/architecture"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"factor_source": "guessed"}, r"packing\.factor_source is 'guessed'; use one of reported, derived"),
        ({"max_slowdown": 0.0}, r"packing\.max_slowdown is 0\.0; it must be above 0"),
        ({"count": 2}, "llama2_70b does not fit into 2 rtx_a6000 in fp16\\. Set more chips"),
    ],
)
def test_an_impossible_packing_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        packing(**change)


def test_a_cluster_without_memory_or_roofline_is_refused():
    with pytest.raises(ValueError, match="the memory of rtx_a6000 is not known"):
        ReplicaPacking(Fleet(replace(A6000, memory_gb=None, sources={})), LLAMA2_70B)
    with pytest.raises(ValueError, match=r"packing\.cluster: timing=wisp_table_12 times one chip only; set roofline"):
        ReplicaPacking(Fleet(chip("a100_80gb"), count=8, timing="wisp_table_12"), LLAMA2_70B)


def test_a_cluster_of_nodes_of_several_chips_is_refused():
    with pytest.raises(ValueError, match=r"packing\.cluster: tensor_parallel=4, but count is .*; set tensor"):
        ReplicaPacking(Fleet(A6000, count=8, tensor_parallel=4), LLAMA2_70B)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt_tokens": 0}, "prompt_tokens=0 must be at least 1"),
        ({"new_tokens": 0}, "new_tokens=0 must be at least 1"),
        ({"request_interval_s": 0.0}, "request_interval_s=0.0 must be above 0 seconds"),
    ],
)
def test_an_impossible_demand_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        ReplicaDemand(**change)
