"""Reads `llama-bench -o json` and `-o jsonl` of llama.cpp: one record a test.

Source: llama.cpp, tools/llama-bench/README.md, "Output formats", and the fields of `test::get_fields` in
llama-bench.cpp, as of 2025 (with n_depth) and 2026 (with devices and tensor_buft_overrides). A prompt test (pp)
computes n_prompt tokens behind n_depth; a generation test (tg) computes n_gen tokens one by one. Times leave out
tokenizing, sampling and the filling of n_depth.
"""

import re
from typing import get_args

from serving.hardware.architecture import Precision
from training.latency import benchmark_json as fields
from training.latency.benchmark_json import Record
from training.latency.benchmark_run import BenchmarkRun, check_dense_text
from training.latency.published_speeds import Phase

SOFTWARE = "llama_cpp"
DENSE_FAMILIES = frozenset({"falcon", "llama", "phi3", "qwen2", "qwen3"})
"""General architectures of GGUF files whose shapes `Architecture` has."""
_PRECISIONS: tuple[tuple[str, Precision], ...] = (
    (r"\b(F16|BF16)\b", "fp16"), (r"\bQ8_0\b", "int8"), (r"\b(Q4_0|Q4_1|Q4_K|IQ4_XS|IQ4_NL)\b", "int4"),
)  # fmt: skip
_BITS: dict[Precision, tuple[float, float]] = {"fp16": (15.5, 17.0), "int8": (7.5, 9.5), "int4": (3.9, 6.6)}
"""Bits a weight of a whole file; small models keep embedding and odd rows in more bits."""
_UBATCH = 512
"""Tokens of a prompt that one forward takes by default (-ub)."""
_SETTINGS = ("n_threads", "n_batch", "n_ubatch", "flash_attn", "n_gpu_layers", "backends", "model_filename", "type_k")
_MAX_PARAMETERS = 10**13


def is_record(record: Record) -> bool:
    """True if llama-bench wrote it."""
    return "n_gen" in record and "n_prompt" in record


def read_run(record: Record, where: str) -> BenchmarkRun:
    """The forward that a record measured. Raises ValueError with the reason for one that is no plain forward."""
    model = fields.text(record, "model_type")
    check_dense_text(model)
    parameters = fields.count(record, "model_n_params", _MAX_PARAMETERS)
    precision = _precision(record, model, parameters)
    _check_one_chip(record)
    _check_cache(record)
    phase, cached_tokens, new_tokens, num_forwards = _work(record)
    seconds, note = _timing(record, new_tokens * num_forwards)
    return BenchmarkRun(
        where, SOFTWARE, model, phase, 1, cached_tokens, new_tokens, seconds / num_forwards, note, precision,
        parameters, model.split()[0] in DENSE_FAMILIES, _gpu_layers(record),
        {name: record.get(name) for name in _SETTINGS},
    )  # fmt: skip


def _precision(record: Record, model: str, parameters: int) -> Precision:
    precision = next((found for pattern, found in _PRECISIONS if re.search(pattern, model)), None)
    if precision is None:
        raise ValueError(
            f"{model!r} has no quantisation that the clock has: F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, IQ4_XS or IQ4_NL"
        )
    bits = 8 * fields.number(record, "model_size") / max(parameters, 1)
    least, most = _BITS[precision]
    if not least <= bits <= most:
        raise ValueError(
            f"model_size over model_n_params is {bits:.1f} bits a weight; {precision} files have {least} to {most}"
        )
    assert precision in get_args(Precision)
    return precision


def _backends(record: Record) -> set[str]:
    """The backends besides the CPU's that took part."""
    if fields.text(record, "devices", "auto") == "none":
        return set()
    return {name.strip() for name in fields.text(record, "backends").split(",")} - {"CPU", "BLAS"}


def _check_one_chip(record: Record) -> None:
    backends, devices = _backends(record), fields.text(record, "devices", "auto")
    if "RPC" in backends:
        raise ValueError("layers ran on other machines (RPC); measure one machine alone")
    several = "/" in devices if devices != "auto" else ", " in fields.text(record, "gpu_info", "")
    if backends and several and fields.text(record, "split_mode", "layer") != "none":
        raise ValueError("layers were split over several GPUs; measure one (-sm none, or -dev NAME)")
    if fields.count(record, "n_cpu_moe", default=0) or fields.text(record, "tensor_buft_overrides", "none") != "none":
        raise ValueError("some tensors lay elsewhere (-ot, -ncmoe); measure with all of them on one chip")


def _check_cache(record: Record) -> None:
    for name in ("type_k", "type_v"):
        if (kind := fields.text(record, name, "f16")) not in ("f16", "bf16"):
            raise ValueError(f"{name} is {kind!r}; the clock counts 16 bits a cache entry (-ctk f16 -ctv f16)")
    if record.get("embeddings") or record.get("no_kv_offload"):
        raise ValueError("embeddings or no_kv_offload was on; measure without -embd and -nkvo")


def _gpu_layers(record: Record) -> int | None:
    """None on a machine whose CPU computes; -1 of newer tools means all."""
    layers = record.get("n_gpu_layers", -1)
    if not _backends(record) or layers == -1:
        return None
    return fields.count(record, "n_gpu_layers", 100_000)


def _work(record: Record) -> tuple[Phase, int, int, int]:
    """Phase, cached and new tokens of a forward, and how many forwards the test has."""
    prompt, answer, depth = (fields.count(record, "n_prompt"), fields.count(record, "n_gen"),
                             fields.count(record, "n_depth", default=0))  # fmt: skip
    if bool(prompt) == bool(answer):
        kinds = f"pp{prompt}+tg{answer}" if prompt else "neither a prompt nor an answer"
        raise ValueError(f"{kinds} mixes two kinds of forward; run -p {prompt or 512} and -n {answer or 128}, not -pg")
    if answer:
        return "decode", depth + answer // 2, 1, answer
    piece = min(fields.count(record, name, default=_UBATCH) for name in ("n_batch", "n_ubatch"))
    if piece < min(prompt, _UBATCH):
        raise ValueError(f"the prompt was fed in pieces of {piece} tokens; run with -b and -ub of {_UBATCH} or more")
    return ("forward" if depth else "prefill"), depth, prompt, 1


def _timing(record: Record, num_tokens: int) -> tuple[float, str]:
    """Seconds of the whole test, and a note on build, backend and repeats."""
    seconds, repeats = fields.number(record, "avg_ns") / 1e9, fields.samples(record, "samples_ns")
    if repeats and not min(repeats) * 0.999 <= seconds * 1e9 <= max(repeats) * 1.001:
        raise ValueError("avg_ns lies outside samples_ns: the record was changed")
    found = fields.spread(repeats)
    if "stddev_ns" in record:
        found = fields.number(record, "stddev_ns", 0.0) / 1e9 / seconds
        fields.check_spread(found)
    if "avg_ts" in record and not 0.9 < fields.number(record, "avg_ts") * seconds / num_tokens < 1.1:
        raise ValueError("avg_ts and avg_ns do not fit the number of tokens: the record was changed")
    build = f"{fields.count(record, 'build_number', 10**9, 0)} ({fields.text(record, 'build_commit', '')})"
    chip = fields.text(record, "gpu_info" if _backends(record) else "cpu_info", "")
    count = f"{len(repeats)} repeats, " if repeats else ""
    return seconds, f"llama-bench {build}, {fields.text(record, 'backends')}, {chip}, {count}spread {100 * found:.1f} %"
