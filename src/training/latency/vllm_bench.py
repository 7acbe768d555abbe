"""Reads the JSON of `vllm bench latency --output-json` and of `vllm bench serve --save-result`.

Source: vLLM 0.11 to 0.15, vllm/benchmarks/latency.py (avg_latency, latencies, percentiles), serve.py (completed,
total_input_tokens, total_output_tokens, median_tpot_ms, std_tpot_ms, max_concurrency, ...) and throughput.py.

A row is one forward of known batch and lengths. `latency` with one output token is a prefill of the batch; the same run
with N tokens, less that one, is N - 1 decodes. `serve` of one request at a time has decodes of one session, its TPOT;
its TTFT also has HTTP, tokenizer and queue in it. `throughput` mixes prompts with answers and batches of all sizes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev

from training.latency import benchmark_json as fields
from training.latency.benchmark_json import Record
from training.latency.benchmark_run import BenchmarkRun, Refusal, check_dense_text

SOFTWARE = "vllm"
LATENCY_COMMAND = "vllm bench latency --batch-size B --input-len I --output-len N --output-json FILE"
_MAX_PROMPT_TOKENS = 8192
"""Of a batch: vLLM takes no more in one forward by default (max_num_batched_tokens)."""
_MAX_LENGTH_RATIO = 1.25


@dataclass(frozen=True)
class LatencyShape:
    """The arguments of `vllm bench latency`, which its output does not repeat."""

    batch: int
    input_len: int
    output_len: int
    prefill: Path | None = None
    """Output of the same run with --output-len 1."""


def is_record(record: Record) -> bool:
    """True if vLLM wrote it."""
    return any(name in record for name in ("avg_latency", "tokens_per_second", "request_throughput"))


def read_runs(record: Record, where: str, shape: LatencyShape | None) -> Iterator[BenchmarkRun | Refusal]:
    """The forwards that a record measured. Raises ValueError with the reason for one without any."""
    if "avg_latency" in record:
        yield _read_latency(record, where, shape)
    elif "median_tpot_ms" in record:
        yield from _read_serve(record, where)
    else:
        raise ValueError(
            "a throughput mixes prompts with answers, and batches of all sizes: no forward of a known shape. Run "
            f"`{LATENCY_COMMAND}` instead, once with --output-len 1 and once with 128 or more"
        )


def _read_latency(record: Record, where: str, shape: LatencyShape | None) -> BenchmarkRun:
    if shape is None:
        raise ValueError(f"the file does not say what ran: batch=B input_len=I output_len=N, as in `{LATENCY_COMMAND}`")
    _check_shape(shape)
    mean_s, deviation_s, repeats = _latency(record)
    note = f"vllm bench latency, {repeats} repeats, spread {100 * deviation_s / mean_s:.1f} %"
    if shape.output_len == 1:
        return BenchmarkRun(where, SOFTWARE, "", "prefill", shape.batch, 0, shape.input_len, mean_s, note)
    if shape.prefill is None:
        raise ValueError(
            f"{shape.output_len} output tokens are a prompt and decodes in one: run the same with --output-len 1 too, "
            "give that file first as a row of its own (output_len=1), then this one with prefill=THAT_FILE"
        )
    prefill_s, prefill_deviation_s, _ = _latency(_prefill_record(shape.prefill))
    answers_s = mean_s - prefill_s
    if answers_s <= 2 * (deviation_s + prefill_deviation_s):
        raise ValueError(
            f"{mean_s:.4g} s less the prefill's {prefill_s:.4g} s is within the spread of the repeats: take more "
            "output tokens, or check that both runs had the same batch and input length"
        )
    cached_tokens = shape.input_len + shape.output_len // 2
    seconds = answers_s / (shape.output_len - 1)
    return BenchmarkRun(where, SOFTWARE, "", "decode", shape.batch, cached_tokens, 1, seconds, f"{note}, less prefill")


def _check_shape(shape: LatencyShape) -> None:
    if shape.batch > 1 and shape.batch * shape.input_len > _MAX_PROMPT_TOKENS:
        raise ValueError(
            f"{shape.batch} prompts of {shape.input_len} tokens are more than {_MAX_PROMPT_TOKENS}, which vLLM takes "
            "in one forward: some sessions would decode while others still read. Take fewer or shorter prompts"
        )


def _prefill_record(file: Path) -> Record:
    records = fields.read_records(file)
    if len(records) != 1 or "avg_latency" not in records[0]:
        raise ValueError(f"prefill={file} is no output of vllm bench latency")
    return records[0]


def _latency(record: Record) -> tuple[float, float, int]:
    """Mean and standard deviation in seconds, and the number of repeats."""
    mean_s, repeats = fields.number(record, "avg_latency"), fields.samples(record, "latencies")
    if not repeats or abs(fmean(repeats) / mean_s - 1) > 0.01:
        raise ValueError("avg_latency is not the mean of latencies: the record was changed")
    fields.spread(repeats)
    return mean_s, pstdev(repeats), len(repeats)


def _read_serve(record: Record, where: str) -> Iterator[BenchmarkRun | Refusal]:
    model = fields.text(record, "model_id")
    check_dense_text(model)
    completed = fields.count(record, "completed")
    if fields.count(record, "failed", default=0) or not completed:
        raise ValueError(f"requests failed, or none was completed ({completed}): measure again")
    if record.get("max_concurrency") != 1:
        raise ValueError(
            "requests overlapped, so that a token's time has other requests' prompts in it: serve one at a time "
            f"(--max-concurrency 1), and measure batches with `{LATENCY_COMMAND}`"
        )
    if any(name.startswith("spec_decode") for name in record):
        raise ValueError("the server drafted (speculative decoding), so a token is no forward: serve without it")
    input_len = _mean_length(record, "total_input_tokens", "input_lens", completed)
    output_len = _mean_length(record, "total_output_tokens", "output_lens", completed)
    if output_len < 2:
        raise ValueError("answers of one token have no time per output token: take --random-output-len 128 or more")
    fields.check_spread(fields.number(record, "std_tpot_ms", 0.0) / fields.number(record, "mean_tpot_ms"))
    yield BenchmarkRun(
        where, SOFTWARE, model, "decode", 1, input_len + output_len // 2, 1,
        fields.number(record, "median_tpot_ms") / 1e3, f"vllm bench serve, {completed} requests one at a time, TPOT",
    )  # fmt: skip
    yield Refusal(
        f"{where}, TTFT",
        "it has HTTP, tokenizer and queue in it besides the prompt's forward: run `vllm bench latency --output-len 1`",
    )


def _mean_length(record: Record, total: str, each: str, completed: int) -> int:
    lengths = fields.samples(record, each)
    if lengths and max(lengths) > _MAX_LENGTH_RATIO * min(lengths):
        raise ValueError(f"{each} differ: take --dataset-name random --random-range-ratio 0 --ignore-eos")
    return round(fields.count(record, total, 10**12) / completed)
