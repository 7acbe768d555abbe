"""A chip's roofline: the larger of computing and reading, what its process adds, and Eq. 19 fitted to it."""

from dataclasses import replace

import pytest

from serving.hardware.chip import Chip, PowerMode, SoftwareEfficiency, roofline
from serving.hardware.latency import ForwardLoad, batch_load
from serving.hardware.roofline import linear_fit
from tests.support.conf_files import architecture, chip

LLAMA = architecture("tinyllama_1_1b")
MADE_UP = Chip(
    "made_up",
    {"full": PowerMode(fp16_tflops=100, memory_gbps=1000), "low": PowerMode(fp16_tflops=10, memory_gbps=1000)},
    "full",
    software={
        "vllm": SoftwareEfficiency(0.5, 0.8, 0.4, forward_overhead_s=3e-3),
        "transformers": SoftwareEfficiency(0.5, 0.8, 0.4, layer_overhead_s=1e-3),
    },
    default_software="vllm",
)


def test_roofline_from_first_principles():
    latency = roofline(MADE_UP, None, LLAMA, "fp16")
    flops, nbytes = 100e12 * 0.5, 1000e9 * 0.8
    head = 32000 * 2048
    assert latency.linear_token_s + latency.head_token_s == pytest.approx(LLAMA.flops_per_token() / flops)
    assert latency.attention_pair_s == pytest.approx(4 * 22 * 2048 / flops)
    assert latency.attention_read_s == pytest.approx(2 * 22 * 256 * 2 / nbytes)
    assert latency.head_read_s == pytest.approx(2 * head / nbytes)
    assert latency.linear_read_s == pytest.approx(2 * (LLAMA.parameters() - 2 * head - 2048) / nbytes)
    assert latency.source.startswith("roofline of made_up in mode full, tinyllama_1_1b, fp16, vllm (unverified: ")


def test_a_group_takes_about_the_larger_of_computing_and_reading():
    latency = roofline(MADE_UP, None, LLAMA, "fp16")
    for num_tokens in (1, 8, 1_000_000):
        compute_s, read_s = latency.linear_token_s * num_tokens, latency.linear_read_s
        linear_s = latency.seconds(ForwardLoad(22, num_tokens, 0, 0)) - 3e-3
        assert linear_s == pytest.approx(max(compute_s, read_s), rel=0.02)
    equal = latency.linear_read_s / latency.linear_token_s
    linear_s = latency.seconds(ForwardLoad(22, equal, 0, 0)) - 3e-3
    assert linear_s == pytest.approx(2**0.5 * latency.linear_read_s)


def test_a_forward_of_sixty_tokens_costs_nearly_what_one_costs():
    """Measured on an A100 with Llama-2-7B: 9.3 ms for one token, 9.7 for 64, 12.2 for 128, 17.8 for 256."""
    latency = roofline(chip("a100_80gb"), None, architecture("llama2_7b"), "fp16")

    def body_s(num_tokens: int) -> float:
        return latency.seconds(ForwardLoad(32, num_tokens, 0, 0)) - latency.forward_s

    assert body_s(64) / body_s(1) < 1.2
    assert 1.2 < body_s(128) / body_s(1) < 1.7
    assert 1.7 < body_s(256) / body_s(1) < 2.7


def test_each_started_forward_pays_its_constant_and_each_layer_its_launches():
    server, eager = (roofline(MADE_UP, None, LLAMA, "fp16", software=name) for name in ("vllm", "transformers"))
    whole, part = ForwardLoad(22, 0, 0, 0, num_forwards=1), ForwardLoad(2, 0, 0, 0, num_forwards=1)
    read_s = server.linear_read_s
    assert server.seconds(whole) == pytest.approx(read_s + 3e-3)
    assert server.seconds(part) == pytest.approx(read_s * 2 / 22 + 3e-3)
    assert eager.seconds(whole) == pytest.approx(read_s + 22e-3)
    assert eager.seconds(part) == pytest.approx(read_s * 2 / 22 + 2e-3)
    rest = part._replace(layers=20, num_continued=1)
    assert server.total_seconds((part, rest), 22, 22) == pytest.approx(server.seconds(whole))
    assert eager.total_seconds((whole,), 44, 22) == pytest.approx(2 * read_s + 44e-3)


def test_a_drafter_a_hop_and_a_tier_of_equal_layers_cost_the_same():
    three = architecture("llama2_7b").part(3, embedding=True, lm_head=True)
    drafter, whole = (roofline(MADE_UP, None, model, "fp16") for model in (three, architecture("llama2_7b")))
    for load in (batch_load(3, [(100, 1)], 1), batch_load(3, [(0, 64)], 1)):
        assert drafter.seconds(load) == pytest.approx(whole.seconds(load), rel=1e-3)


def test_decoding_follows_bandwidth_and_prefill_follows_compute():
    decode, prefill = batch_load(22, [(100, 1)], 1), batch_load(22, [(0, 1000)], 1)
    slow, fast = roofline(MADE_UP, "low", LLAMA, "fp16"), roofline(MADE_UP, "full", LLAMA, "fp16")
    assert slow.seconds(decode) / fast.seconds(decode) < 1.05
    assert slow.seconds(prefill) / fast.seconds(prefill) > 2.5


def test_fewer_bits_speed_reading_and_not_arithmetic():
    half, quarter = roofline(MADE_UP, None, LLAMA, "fp16"), roofline(MADE_UP, None, LLAMA, "int4")
    assert quarter.linear_token_s == half.linear_token_s
    assert quarter.head_read_s == pytest.approx(half.head_read_s * 4.5 / 16 * 0.8 / 0.4)


def test_a_quantised_model_reads_its_blocks_faster_but_not_its_head():
    whole, small = roofline(MADE_UP, None, LLAMA, "fp16"), roofline(MADE_UP, None, LLAMA.quantized("nf4"), "fp16")
    assert (small.linear_token_s, small.head_read_s) == (whole.linear_token_s, whole.head_read_s)
    assert small.linear_read_s == pytest.approx(LLAMA.quantized("nf4").blocks_nbytes("fp16") / (1000e9 * 0.4))
    assert "tinyllama_1_1b_nf4, fp16" in small.source


def test_two_chips_halve_all_but_the_overheads():
    one, two = (roofline(MADE_UP, None, LLAMA, "fp16", tensor_parallel=n) for n in (1, 2))
    assert two.linear_token_s == pytest.approx(one.linear_token_s / 2)
    assert two.linear_read_s == pytest.approx(one.linear_read_s / 2)
    assert (two.forward_s, two.layer_s) == (one.forward_s, one.layer_s)


@pytest.mark.parametrize(
    ("name", "decode", "prefill"),
    [("macbook_m1", 14.2, 108.0)],  # llama.cpp, Llama-2-7B Q4_0
)
def test_roofline_lies_within_a_fifth_of_published_throughput(name: str, decode: float, prefill: float):
    latency = roofline(chip(name), None, architecture("llama2_7b"), "int4")
    assert 1 / latency.seconds(batch_load(32, [(64, 1)], 1)) == pytest.approx(decode, rel=0.2)
    assert 512 / latency.seconds(batch_load(32, [(0, 512)], 1)) == pytest.approx(prefill, rel=0.2)


def test_eq_19_fitted_to_a_roofline_is_near_it_for_what_a_server_runs():
    latency = roofline(chip("a100_80gb"), None, architecture("qwen3_32b"), "fp16")
    linear = linear_fit(latency)
    shapes = [batch_load(64, [(500, 5)] * n, 5 * n) for n in (1, 4, 16, 32)] + [batch_load(64, [(0, 512)], 1)]
    errors = [abs(linear.seconds(load) / latency.seconds(load) - 1) for load in shapes]
    assert max(errors) < 0.35
    assert sorted(errors)[2] < 0.15
    assert linear.forward_s == latency.forward_s
    assert linear.source.startswith("Eq. 19 fitted to the roofline of a100_80gb")


def test_a_chip_without_peaks_or_software_has_no_roofline():
    with pytest.raises(ValueError, match=r"chip local names no software, so there is no roofline: use its profile"):
        roofline(chip("local"), None, LLAMA, "fp16")
    bare = replace(MADE_UP, modes={"full": PowerMode()})
    with pytest.raises(ValueError, match=r"made_up has no FP16 peak or no bandwidth in mode full"):
        roofline(bare, None, LLAMA, "fp16")
