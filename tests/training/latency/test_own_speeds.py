"""Rows of a user's own machine: what they are matched with, what is refused, and what they change."""

import json
from dataclasses import replace
from math import hypot
from pathlib import Path
from typing import Any

import pytest

from serving.hardware.architecture import Architecture
from serving.hardware.chip import roofline
from tests.support.conf_files import CONF, architecture, chip, names
from tests.training.latency.benchmark_files import BENCHMARKS, records
from training.latency import own_speeds, stages
from training.latency.own_speeds import OwnMachine, OwnSpeeds, own_machine, read_own_speeds
from training.latency.published_speeds import PublishedSpeed, append_speeds, read_speeds
from training.latency.speed_score import phase_scores, score_speeds

MODELS = {name: architecture(name) for name in names("model/architecture")}
CHIPS = {name: chip(name) for name in ("rtx_3090", "rtx_4090", "a100_80gb", "raspberry_pi_5")}
MINE = OwnMachine(CHIPS["rtx_3090"], None, "made up, 2026", "CC0")
PUBLISHED = CONF / "hardware" / "measured" / "speeds.csv"

FAST = {"avg_ns": 10**6, "samples_ns": [], "stddev_ns": 0, "avg_ts": 512e3}


def read(*changes: dict[str, Any], tmp_path: Path, machine: OwnMachine = MINE) -> OwnSpeeds:
    """The first record of the sample, once with each of the changes."""
    file = tmp_path / "bench.json"
    file.write_text(json.dumps([records("llama_bench.json")[0] | each for each in changes]))
    return read_own_speeds([file], machine, MODELS)


def test_good_records_become_rows_and_the_others_are_named():
    found = read_own_speeds([BENCHMARKS / "llama_bench.json"], MINE, MODELS)
    assert [(row.phase, row.cached_tokens, row.architecture.name, row.precision) for row in found.rows] == [
        ("prefill", 0, "llama3_8b", "int4"),
        ("decode", 64, "llama3_8b", "int4"),
        ("forward", 4096, "llama3_8b", "int4"),
        ("decode", 4160, "llama3_8b", "int4"),
    ]
    assert [str(one) for one in found.refusals] == [
        "llama_bench.json, record 5: pp512+tg128 mixes two kinds of forward; run -p 512 and -n 128, not -pg."
    ]


def test_a_model_is_known_by_its_parameters_or_its_name():
    (row, _) = read_own_speeds(
        [BENCHMARKS / "llama_bench_2026.jsonl"], replace(MINE, chip=CHIPS["raspberry_pi_5"]), MODELS
    ).rows
    assert (row.architecture.name, row.precision) == ("qwen2_5_0_5b", "int8")
    served = OwnMachine(CHIPS["a100_80gb"], "default", "made up", "CC0", precision="fp16")
    (row,) = read_own_speeds([BENCHMARKS / "vllm_serve.json"], served, MODELS).rows
    assert (row.architecture.name, row.precision, row.software) == ("qwen2_5_7b", "fp16", "vllm")


@pytest.mark.parametrize("named", [None, MODELS["qwen2_5_0_5b"]])
def test_a_tied_head_that_a_file_stores_apart_is_counted_with_and_without_a_name(
    tmp_path: Path, named: Architecture | None
):
    file = tmp_path / "bench.json"
    apart = {"model_n_params": 630_167_424, "model_size": 670_000_000}
    file.write_text(json.dumps(records("llama_bench_2026.jsonl")[0] | apart))
    machine = replace(MINE, chip=CHIPS["raspberry_pi_5"], architecture=named)
    found = read_own_speeds([file], machine, MODELS)
    assert [row.architecture.name for row in found.rows] == ["qwen2_5_0_5b"], found.refusals


@pytest.mark.parametrize(
    ("changes", "given", "reason"),
    [
        ({"model_n_params": 8 * 10**9}, {}, "which architecture is 'llama 8B Q4_K - Medium' with 8,000,000,000 param"),
        ({"model_n_params": 8 * 10**9}, {}, "architecture=NAME of conf/model/architecture, or add one YAML file there"),
        ({"model_type": "gemma2 9B Q4_0"}, {}, "which architecture is 'gemma2 9B Q4_0'"),
        ({}, {"architecture": MODELS["llama2_7b"]}, "and architecture=llama2_7b has 6,738,415,616"),
        ({}, {"precision": "int8"}, "the file has weights in int4, and precision=int8 was given"),
        ({"n_gpu_layers": 20}, {}, "20 of 33 layers ran on the GPU"),
        ({"n_gpu_layers": 32}, {}, "32 of 33 layers ran on the GPU"),
        ({"n_gpu_layers": 0}, {}, "0 of 33 layers ran on the GPU"),
        (FAST, {}, "1 ms is faster than rtx_3090 can be"),
    ],
)
def test_what_does_not_match_is_refused(tmp_path: Path, changes: dict[str, Any], given: dict[str, Any], reason: str):
    found = read(changes, tmp_path=tmp_path, machine=replace(MINE, **given))
    assert found.rows == []
    assert reason in str(found.refusals[0])


def test_an_architecture_that_names_no_source_fits_no_name():
    nameless = replace(MODELS["qwen2_5_7b"], name="mine", source="")
    served = OwnMachine(CHIPS["a100_80gb"], "default", "made up", "CC0", precision="fp16")
    (row,) = read_own_speeds([BENCHMARKS / "vllm_serve.json"], served, {"mine": nameless, **MODELS}).rows
    assert row.architecture.name == "qwen2_5_7b"


def test_a_vllm_output_without_model_or_precision_asks_for_them():
    shape = own_speeds.LatencyShape(8, 512, 1)
    machine = OwnMachine(CHIPS["a100_80gb"], "default", "made up", "CC0", shape=shape)
    file = BENCHMARKS / "vllm_latency_1.json"
    (refused,) = read_own_speeds([file], machine, MODELS).refusals
    assert "which architecture is the model, which the output does not name" in refused.reason
    (refused,) = read_own_speeds([file], replace(machine, architecture=MODELS["llama2_7b"]), MODELS).refusals
    assert "precision=fp16" in refused.reason


def test_the_same_work_measured_twice_is_refused_with_what_differs(tmp_path: Path):
    found = read({"n_threads": 4}, {"n_threads": 8}, tmp_path=tmp_path)
    assert found.rows == []
    assert "record 1 and bench.json, record 2 measure the same work, with n_threads of 4 | 8" in str(found.refusals[0])


def test_no_published_row_is_faster_than_its_chip_can_be():
    chips = {name: chip(name) for name in names("hardware/chip")}
    for row in read_speeds(PUBLISHED, chips, MODELS):
        if row.software != "kernels":
            own_speeds._check_peaks(row)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"precision": "fp32"}, "precision=fp32: one of fp16, int8, int4 is wanted"),
        ({"source": ""}, "source= is ''; one line of 1 to 200 signs"),
        ({"licence": "MIT\nCC0"}, "licence= is 'MIT"),
        ({"software": "../x"}, "software='../x': a name as in"),
        ({"batch": "8"}, "batch=, input_len= and output_len= of `vllm bench latency` go together"),
        ({"batch": "0", "input_len": "5", "output_len": "1"}, "batch=0: a whole number of 1 or more"),
        ({"mode": "turbo"}, "chip rtx_3090 has no mode 'turbo'"),
    ],
)
def test_what_the_user_says_is_checked(facts: dict[str, str], message: str):
    with pytest.raises(ValueError, match=message):
        own_machine(CHIPS["rtx_3090"], None, facts)


def test_a_chip_of_several_modes_needs_one():
    with pytest.raises(ValueError, match=r"in which power mode did it run. mode=NAME, one of MAXN, 15W, 30W, 50W"):
        own_machine(chip("jetson_agx_orin_64gb"), None, {})


def test_a_chip_without_peaks_is_refused():
    with pytest.raises(ValueError, match="chip csv_timings has no fp16_tflops or no memory_gbps"):
        own_machine(chip("csv_timings"), None, {})


# The file of rows.


def own_rows() -> list[PublishedSpeed]:
    return read_own_speeds([BENCHMARKS / "llama_bench.json"], MINE, MODELS).rows


def test_written_rows_read_as_they_were(tmp_path: Path):
    file = tmp_path / "mine.csv"
    append_speeds(file, own_rows()[:1])
    append_speeds(file, own_rows()[1:])
    found = read_speeds(file, CHIPS, MODELS)
    assert [replace(row, seconds=round(row.seconds, 6)) for row in found] == [
        replace(row, seconds=round(row.seconds, 6)) for row in own_rows()
    ]
    assert file.read_text().splitlines()[0] == PUBLISHED.read_text(encoding="utf-8").splitlines()[0]
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "mine.csv"
    append_speeds(file, own_rows()[:1])
    before = file.read_bytes()

    def fail(source: Path, target: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="no space left"):
        append_speeds(file, own_rows()[1:])
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


def test_rows_go_into_the_file_that_a_link_names(tmp_path: Path):
    (tmp_path / "store").mkdir()
    file, link = tmp_path / "store" / "mine.csv", tmp_path / "link.csv"
    append_speeds(file, own_rows()[:1])
    link.symlink_to(file)
    append_speeds(link, own_rows()[1:])
    assert link.is_symlink()
    assert len(read_speeds(file, CHIPS, MODELS)) == 4


def test_stored_rows_are_not_stored_again():
    stored = own_rows()[:3]
    found = read_own_speeds([BENCHMARKS / "llama_bench.json"], MINE, MODELS, stored)
    assert [row.cached_tokens for row in found.rows] == [4160]
    assert sum("the file has this work already" in one.reason for one in found.refusals) == 3
    other = replace(MINE, source="another day")
    assert len(read_own_speeds([BENCHMARKS / "llama_bench.json"], other, MODELS, stored).rows) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seconds,", "ms,"), "mine.csv, line 1: the columns are chip,mode"),
        ((",CC0,", ","), "mine.csv, line 2: more or fewer values than the 13 columns"),
        ((",0.13", ",inf #"), "mine.csv, line 2: could not convert"),
    ],
)
def test_a_file_of_other_rows_is_refused(tmp_path: Path, change: tuple[str, str], message: str):
    file = tmp_path / "mine.csv"
    append_speeds(file, own_rows()[:1])
    file.write_text(file.read_text().replace(*change))
    with pytest.raises(ValueError, match=message):
        read_speeds(file, CHIPS, MODELS)


# The score.


def test_rows_are_scored_with_the_figures_of_today():
    scored = score_speeds(own_rows())
    assert all(one.error is not None and abs(one.error) < 0.2 for one in scored)
    assert scored[0].label == "rtx_3090 llama_cpp llama3_8b int4 prefill 1 x 512"
    assert scored[0].basis.startswith("rtx_3090, llama_cpp: measured: fitted to 14 rows")
    assert [(one.kind, one.rows) for one in phase_scores(scored)] == [("decode", 2), ("forward", 1), ("prefill", 1)]


def test_linear_layers_alone_are_scored_by_their_own_time():
    row = replace(own_rows()[0], phase="linear")
    model = roofline(row.chip, None, row.architecture, row.precision, software=row.software)
    (scored,) = score_speeds([row])
    assert scored.predicted_s == pytest.approx(hypot(model.linear_token_s * 512, model.linear_read_s))


def test_software_without_figures_has_no_prediction():
    row = replace(own_rows()[0], software="tensorrt")
    (scored,) = score_speeds([row])
    assert (scored.predicted_s, scored.error) == (None, None)
    assert scored.basis.startswith("chip rtx_3090 has no figures for tensorrt (it has: llama_cpp,")
    assert phase_scores([scored]) == []


def clock_rows(out: Path, models: tuple[Architecture, ...], own: tuple[Path, ...]) -> dict[str, Any]:
    published = out / "published.csv"
    lines = PUBLISHED.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines[1:] if line.startswith(("rtx_3090,,llama_cpp,", "rtx_4090,,llama_cpp,"))]
    out.mkdir()
    published.write_text("\n".join([lines[0], *kept]), encoding="utf-8")
    chips = CHIPS["rtx_3090"], CHIPS["rtx_4090"]
    stages.score_clock(
        out, progress=lambda *each: None, speeds=published, former=PUBLISHED.with_name("former_clock.csv"),
        chips=chips, architectures=models, own_speeds=own,
    )  # fmt: skip
    found: dict[str, Any] = json.loads((out / "rows.json").read_text())
    return found


def test_rows_of_ones_own_join_the_fit_and_its_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("training.latency.clock.draw_scatter", lambda found, path: None)
    monkeypatch.setattr("training.latency.clock.software_yaml", lambda *each: "")  # stand-ins need all published rows
    own = tmp_path / "mine.csv"
    append_speeds(own, [replace(row, seconds=row.seconds * 1.5) for row in own_rows()])
    models = tuple(MODELS.values())
    alone, joined = clock_rows(tmp_path / "a", models, ()), clock_rows(tmp_path / "b", models, (own,))
    assert {"rows of your own", "kernels"} & set(alone) == set()
    assert not any(title.startswith("before and after") for title in joined)  # conf did not have these chips then
    assert "rtx_3090,llama_cpp,decode," in (tmp_path / "b" / "held_out.csv").read_text()
    mine = joined["rows of your own"]
    assert mine["decode, another source"]["rows"] == 2
    assert mine["decode, another source"]["bias"] < -0.2
    before, after = alone["another source"]["decode"], joined["another source"]["decode"]
    assert after["rows"] == before["rows"] + 2
    assert after["median_error"] > before["median_error"]


def test_a_plan_reads_the_rows_of_ones_own(tmp_path: Path):
    own = tmp_path / "mine.csv"
    append_speeds(own, own_rows())
    known = {"chips": tuple(CHIPS.values()), "architectures": tuple(MODELS.values())}
    stages.check_score_clock(**known, own_speeds=(own,))
    with pytest.raises(ValueError, match=r"mine\.csv, line 2: 'rtx_3090' is unknown"):
        stages.check_score_clock(**{**known, "chips": (CHIPS["rtx_4090"],)}, own_speeds=(own,))
    stages.check_score_clock(chips=(CHIPS["rtx_4090"],), architectures=known["architectures"],
                             own_speeds=(own,), own_chips=(CHIPS["rtx_3090"],))  # fmt: skip
