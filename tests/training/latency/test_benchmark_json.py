"""Files of benchmark tools: what is read, and what is refused before anything is believed."""

from pathlib import Path

import pytest

from tests.training.latency.benchmark_files import BENCHMARKS
from training.latency import benchmark_json
from training.latency.benchmark_json import read_records


def test_a_list_one_object_and_json_lines_are_read():
    assert len(read_records(BENCHMARKS / "llama_bench.json")) == 5
    assert len(read_records(BENCHMARKS / "llama_bench_2026.jsonl")) == 2
    assert len(read_records(BENCHMARKS / "vllm_serve.json")) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no whole JSON file"),
        ('[{"n_prompt": 512}', "is no whole JSON file"),
        ('{"n_prompt": 512}\n{"n_prompt"', "is no whole JSON file"),
        ("[" * 100_000, "is no whole JSON file"),
        (f"[{'9' * 5000}]", "is no whole JSON file"),
        ("[]", "1 to 10000 records"),
        ("[1, 2]", "1 to 10000 records"),
        ("3", "1 to 10000 records"),
    ],
)
def test_what_is_no_benchmark_is_refused(tmp_path: Path, text: str, message: str):
    (tmp_path / "mine.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_records(tmp_path / "mine.json")


def test_a_missing_a_binary_and_a_large_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="there is no file"):
        read_records(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF\xff\xfe")
    with pytest.raises(ValueError, match="is no text in UTF-8"):
        read_records(tmp_path / "model.gguf")
    monkeypatch.setattr(benchmark_json, "MAX_NBYTES", 5)
    with pytest.raises(ValueError, match="has 6 bytes; at most 5 are read"):
        read_records(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -1, 0, True, "12", None, 5e-324, pytest.param(10**400, id="huge")]
)
def test_a_number_is_neither_huge_nor_nothing(value: object):
    with pytest.raises(ValueError, match=r"avg_ns is .*; a number from 1e-12 to 1e\+18 is wanted"):
        benchmark_json.number({"avg_ns": value}, "avg_ns")


def test_texts_are_one_short_line():
    assert benchmark_json.text({"gpu_info": "A\x1b[31m\nB" + "c" * 999}, "gpu_info").startswith("A [31m Bccc")
    assert len(benchmark_json.text({"gpu_info": "c" * 999}, "gpu_info")) == benchmark_json.MAX_TEXT
