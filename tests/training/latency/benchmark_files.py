"""The sample outputs in `benchmarks/`: made-up figures in the documented formats.

llama_bench.json       llama.cpp b5163 (April 2025), tools/llama-bench/README.md, "JSON": with n_depth
llama_bench_2026.jsonl llama.cpp of 2026, "JSONL": devices, tensor_buft_overrides and load_mode in place of use_mmap
vllm_latency_*.json    vLLM 0.11, `vllm bench latency --output-json`, with 1 and 129 output tokens
vllm_throughput.json   vLLM 0.11, `vllm bench throughput --output-json`
vllm_serve.json        vLLM 0.11, `vllm bench serve --save-result`
"""

import json
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parent / "benchmarks"


def records(name: str) -> list[dict[str, Any]]:
    text = (BENCHMARKS / name).read_text(encoding="utf-8")
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines()]
    found = json.loads(text)
    return found if isinstance(found, list) else [found]
