"""vLLM's benchmarks: the forwards that follow from an output, and outputs from which none does."""

from dataclasses import replace
from typing import Any

import pytest

from tests.training.latency.benchmark_files import BENCHMARKS, records
from training.latency.benchmark_run import BenchmarkRun, Refusal
from training.latency.vllm_bench import LatencyShape, read_runs

PREFILL = BENCHMARKS / "vllm_latency_1.json"
SHAPE = LatencyShape(batch=8, input_len=512, output_len=129, prefill=PREFILL)


def read(name: str, shape: LatencyShape | None = None, **changes: Any) -> list[BenchmarkRun | Refusal]:
    return list(read_runs(records(name)[0] | changes, name, shape))


def only(name: str, shape: LatencyShape | None = None) -> BenchmarkRun:
    (run,) = read(name, shape)
    assert isinstance(run, BenchmarkRun)
    return run


def test_one_output_token_is_a_prefill_of_the_batch():
    run = only("vllm_latency_1.json", replace(SHAPE, output_len=1, prefill=None))
    assert (run.phase, run.batch, run.cached_tokens, run.new_tokens) == ("prefill", 8, 0, 512)
    assert run.seconds == pytest.approx(0.31, rel=0.02)


def test_more_output_tokens_less_the_prefill_are_decodes():
    run = only("vllm_latency_129.json", SHAPE)
    assert (run.phase, run.batch, run.cached_tokens, run.new_tokens) == ("decode", 8, 576, 1)
    assert run.seconds == pytest.approx(0.0136, rel=0.02)


@pytest.mark.parametrize(
    ("shape", "changes", "reason"),
    [
        (None, {}, "the file does not say what ran: batch=B"),
        (replace(SHAPE, prefill=None), {}, "a prompt and decodes in one: run the same with --output-len 1"),
        (replace(SHAPE, prefill=BENCHMARKS / "vllm_serve.json"), {}, "is no output of vllm bench latency"),
        (replace(SHAPE, prefill=BENCHMARKS / "vllm_latency_129.json"), {}, "within the spread of the repeats"),
        (replace(SHAPE, batch=64), {}, "64 prompts of 512 tokens are more than 8192"),
        (SHAPE, {"avg_latency": float("nan")}, "avg_latency is nan"),
        (SHAPE, {"avg_latency": 1.0}, "avg_latency is not the mean of latencies"),
        (SHAPE, {"avg_latency": 2.0, "latencies": [1.0, 3.0]}, "the repeats differ by 50 %"),
        (SHAPE, {"latencies": []}, "avg_latency is not the mean of latencies"),
    ],
)
def test_a_latency_of_no_known_forward_is_refused(shape: LatencyShape | None, changes: dict[str, Any], reason: str):
    with pytest.raises(ValueError, match=reason):
        read("vllm_latency_129.json", shape, **changes)


def test_a_server_asked_one_at_a_time_has_decodes_and_no_prefill():
    run, refused = read("vllm_serve.json")
    assert isinstance(run, BenchmarkRun)
    assert (run.phase, run.batch, run.cached_tokens, run.seconds) == ("decode", 1, 1024 + 64, 0.01291)
    assert isinstance(refused, Refusal)
    assert str(refused).startswith("vllm_serve.json, TTFT: it has HTTP, tokenizer and queue in it")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_concurrency": 8}, "requests overlapped, .* serve one at a time"),
        ({"max_concurrency": None}, "requests overlapped"),
        ({"failed": 2}, "requests failed"),
        ({"completed": 0}, "none was completed"),
        ({"median_tpot_ms": -1.0}, "median_tpot_ms is -1.0"),
        ({"std_tpot_ms": 6.0}, "the repeats differ by 46 %"),
        ({"total_output_tokens": 32}, "answers of one token have no time per output token"),
        ({"input_lens": [100, 2000]}, "input_lens differ"),
        ({"spec_decode_acceptance_rate": 60.0}, "the server drafted"),
        ({"model_id": "Qwen/Qwen2.5-VL-7B-Instruct"}, "no dense decoder of text"),
    ],
)
def test_a_server_under_other_conditions_is_refused(changes: dict[str, Any], reason: str):
    with pytest.raises(ValueError, match=reason):
        read("vllm_serve.json", **changes)


def test_a_throughput_says_what_to_run_instead():
    with pytest.raises(ValueError, match=r"mixes prompts with answers.* Run `vllm bench latency --batch-size B"):
        read("vllm_throughput.json")
