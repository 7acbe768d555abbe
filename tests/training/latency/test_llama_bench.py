"""llama-bench: the forward that a record measured, and records that are none."""

from typing import Any

import pytest

from tests.training.latency.benchmark_files import records
from training.latency import llama_bench
from training.latency.llama_bench import read_run


def test_each_test_is_one_kind_of_forward():
    prompt, answer, deep_prompt, deep_answer, _ = records("llama_bench.json")
    works = [
        (run.phase, run.batch, run.cached_tokens, run.new_tokens)
        for run in (read_run(record, "") for record in (prompt, answer, deep_prompt, deep_answer))
    ]
    assert works == [("prefill", 1, 0, 512), ("decode", 1, 64, 1), ("forward", 1, 4096, 512), ("decode", 1, 4160, 1)]


def test_seconds_are_those_of_one_forward():
    prompt, answer, *_ = records("llama_bench.json")
    assert read_run(prompt, "").seconds == pytest.approx(512 / prompt["avg_ts"], rel=1e-3)
    assert read_run(answer, "").seconds == pytest.approx(1 / answer["avg_ts"], rel=1e-3)


def test_precision_size_and_note_are_the_tools_own():
    run = read_run(records("llama_bench.json")[0], "")
    assert (run.software, run.precision, run.parameters, run.gpu_layers) == ("llama_cpp", "int4", 8030261312, 99)
    assert run.note == "llama-bench 5163 (8cf427ff), CUDA, NVIDIA GeForce RTX 3090, 5 repeats, spread 0.2 %"


def test_a_newer_tools_fields_and_a_machine_without_gpu():
    run = read_run(records("llama_bench_2026.jsonl")[1], "")
    assert (run.precision, run.gpu_layers, run.phase) == ("int8", None, "decode")
    assert "CPU, Cortex-A76" in run.note


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"avg_ns": float("nan")}, "avg_ns is nan; a number from 1e-12"),
        ({"avg_ns": -5}, "avg_ns is -5"),
        ({"avg_ns": 10**400}, "avg_ns is 1000"),
        ({"avg_ns": 5e-324, "samples_ns": []}, "avg_ns is 5e-324"),
        ({"stddev_ns": -1}, "stddev_ns is -1; a number from 0"),
        ({"avg_ns": 10**9}, "avg_ns lies outside samples_ns"),
        ({"avg_ts": 9.0}, "avg_ts and avg_ns do not fit"),
        ({"samples_ns": [1, "2"]}, "samples_ns is '2'"),
        ({"samples_ns": [], "stddev_ns": 10**8}, "the repeats differ by 76 %"),
        ({"samples_ns": [80_000_000, 180_000_000], "stddev_ns": 0}, "the repeats differ by 38 %"),
        ({"n_prompt": -512}, "n_prompt is -512; a whole number"),
        ({"n_prompt": 10**12}, "n_prompt is 1000000000000"),
        ({"n_gen": 128}, r"pp512\+tg128 mixes two kinds of forward; run -p 512 and -n 128, not -pg"),
        ({"n_prompt": 0}, "neither a prompt nor an answer"),
        ({"n_ubatch": 64}, "fed in pieces of 64 tokens"),
        ({"model_type": "llama 8B Q3_K - Medium"}, "no quantisation that the clock has"),
        ({"model_type": "llama 8B unknown, may not work"}, "no quantisation that the clock has"),
        ({"model_type": "llama 8B all F32"}, "no quantisation that the clock has"),
        ({"model_size": 8 * 10**9}, "8.0 bits a weight; int4 files have 3.9 to 6.6"),
        ({"model_type": "qwen2vl 7B Q4_K - Medium"}, "no dense decoder of text .'vl'.: vision models"),
        ({"model_type": "mllama 11B Q4_K - Medium"}, "no dense decoder of text"),
        ({"model_type": "qwen3moe 30B.A3B Q4_K - Medium"}, "no dense decoder of text .'moe'."),
        ({"model_type": "llama 8x7B Q4_K - Medium"}, "no dense decoder of text .'8x7'."),
        ({"backends": "CUDA,RPC"}, "layers ran on other machines"),
        ({"gpu_info": "NVIDIA L40S, NVIDIA L40S"}, "split over several GPUs"),
        ({"devices": "CUDA0/CUDA1"}, "split over several GPUs"),
        ({"tensor_buft_overrides": "exps=CPU"}, "some tensors lay elsewhere"),
        ({"type_k": "q8_0"}, "type_k is 'q8_0'; the clock counts 16 bits"),
        ({"no_kv_offload": True}, "no_kv_offload was on"),
        ({"backends": None}, "backends is None; a text is wanted"),
    ],
)
def test_a_record_that_is_no_plain_forward_is_refused(changes: dict[str, Any], reason: str):
    with pytest.raises(ValueError, match=reason):
        read_run(records("llama_bench.json")[0] | changes, "")


def test_an_older_tools_record_without_a_field_is_refused():
    record = records("llama_bench.json")[0]
    del record["backends"]
    with pytest.raises(ValueError, match="'backends' is missing, as in a file of another or an older tool"):
        read_run(record, "")


def test_one_gpu_of_several_counts():
    changes = {"gpu_info": "NVIDIA L40S, NVIDIA L40S", "split_mode": "none"}
    assert llama_bench.read_run(records("llama_bench.json")[0] | changes, "").phase == "prefill"
