"""Published speeds: the project's file, what is fitted to it, and how well that predicts rows that it has not seen."""

import csv
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml

from serving.hardware.chip import SoftwareEfficiency, roofline
from serving.hardware.error_pools import ClockErrors
from tests.support.conf_files import CONF, architecture, chip, names
from training.latency import clock
from training.latency.former_clock import FormerClock
from training.latency.published_speeds import PublishedSpeed, read_speeds
from training.latency.speed_fit import SpeedFit

FILE = CONF / "hardware" / "measured" / "speeds.csv"
FORMER = FILE.with_name("former_clock.csv")
EXPERIMENT = CONF / "experiment" / "clock.yaml"
CHIPS = {name: chip(name) for name in names("hardware/chip")}
MODELS = {name: architecture(name) for name in names("model/architecture")}
HEADER, GOOD = FILE.read_text(encoding="utf-8").splitlines()[:2]


@cache
def speeds() -> tuple[PublishedSpeed, ...]:
    return tuple(read_speeds(FILE, CHIPS, MODELS))


@cache
def whole_fit() -> SpeedFit:
    return SpeedFit(speeds())


@cache
def held_out() -> tuple[clock.HeldOut, ...]:
    return tuple(clock.hold_out(whole_fit(), speeds(), lambda done, total: None))


def test_every_row_of_the_project_has_a_source_and_a_licence():
    assert len(speeds()) > 600
    assert all(speed.source and speed.licence for speed in speeds())


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("chip", "rtx_9999", "line 2: 'rtx_9999' is unknown; known are a100_80gb"),
        ("mode", "turbo", "line 2: chip .* has no mode 'turbo'"),
        ("phase", "training", "line 2: 'training' is none of decode, prefill"),
        ("precision", "fp32", "line 2: 'fp32' is none of fp16, int8, int4"),
        ("seconds", "-1", "line 2: batch and new_tokens are 1 or more"),
        ("batch", "many", "line 2: invalid literal"),
        ("batch", "20000000000", "line 2: batch and new_tokens .* none above 10000000"),
        ("cached_tokens", "10000001", "line 2: batch and new_tokens .* none above 10000000"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, column: str, value: str, message: str):
    row = dict(zip(HEADER.split(","), next(csv.reader([GOOD])), strict=True)) | {column: value}
    with (tmp_path / "mine.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, row)
        table.writeheader()
        table.writerow(row)
    with pytest.raises(ValueError, match=f"mine.csv, {message}"):
        read_speeds(tmp_path / "mine.csv", CHIPS, MODELS)


def test_a_file_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("training.latency.benchmark_json.MAX_NBYTES", 5)
    with pytest.raises(ValueError, match="bytes; at most 5 are read"):
        read_speeds(FILE, CHIPS, MODELS)


def test_a_fit_finds_the_figures_that_made_the_rows():
    true = SoftwareEfficiency(0.42, 0.81, 0.55, forward_overhead_s=2e-3)
    made = list(_made_rows(true))
    compute, bandwidth, quantized, overhead_s, _ = SpeedFit(made).figures("a100", "vllm")
    assert (compute, bandwidth, quantized, overhead_s) == pytest.approx((0.42, 0.81, 0.55, 2e-3), rel=0.05)


def _made_rows(figures: SoftwareEfficiency) -> Iterable[PublishedSpeed]:
    a100 = replace(CHIPS["a100_80gb"], software={"vllm": figures}, default_software="vllm")
    shapes = (("decode", 0, 64, 1), ("decode", 0, 4096, 1), ("prefill", 0, 0, 512), ("prefill", 0, 0, 2048))
    for name in ("qwen2_5_0_5b", "llama2_7b", "llama2_13b", "qwen2_5_32b"):
        for precision in ("fp16", "int4"):
            for phase, _, cached, new in shapes:
                one = PublishedSpeed(
                    a100, None, "vllm", MODELS[name], precision, phase, 1, cached, new, 1.0, "made up", "none", ""
                )  # fmt: skip
                yield replace(one, seconds=roofline(a100, None, MODELS[name], precision).seconds(one.load))


def test_predictions_are_those_of_the_chips_in_conf():
    """What serves requests and what was fitted are one formula, and conf has the figures of the fit."""
    rows = [speed for speed in speeds() if speed.software in speed.chip.software and speed.software != "kernels"]
    predicted_s = whole_fit().predict_s(rows)
    served_s = [
        roofline(row.chip, row.mode, row.architecture, row.precision, software=row.software).seconds(row.load)
        for row in rows
    ]
    assert len(rows) > 550
    assert np.abs(np.array(served_s) / predicted_s - 1).max() < 0.02


def test_held_out_rows_are_no_part_of_the_fit_that_predicts_them(monkeypatch: pytest.MonkeyPatch):
    seen: list[set[str]] = []
    rows = [speed for speed in speeds() if speed.software == "llama_cpp"]

    def refitted(self: SpeedFit, kept: list[PublishedSpeed], software: set[str]) -> SpeedFit:
        seen.append({speed.silicon for speed in kept})
        return self

    monkeypatch.setattr(SpeedFit, "refitted", refitted)
    found = clock.hold_out(SpeedFit(rows), rows, lambda done, total: None)
    processors = [one for one in found if one.split == "processor"]
    assert len(processors) == len(rows)
    assert all(sum(row.silicon not in kept for kept in seen) == 1 for row in rows)


def test_software_of_one_processor_is_not_predicted_without_it():
    rows = [speed for speed in speeds() if speed.group == ("a100", "vllm")][:8]
    found = clock.hold_out(SpeedFit(rows), rows, lambda done, total: None)
    assert {one.split for one in found} == {"model"}


def test_the_clock_reaches_its_aims_on_rows_that_it_has_not_seen():
    """Medians of the error, as docs/clock.md reports them; batches miss theirs."""
    found = clock.error_rows(held_out())
    assert found["another source"]["decode"]["median_error"] < 0.15
    assert found["another source"]["prefill"]["median_error"] < 0.25
    assert found["another model, same source"]["decode"]["median_error"] < 0.15
    assert found["another model, same source"]["prefill"]["median_error"] < 0.20
    assert found["another processor"]["decode"]["median_error"] < 0.25


def test_the_faster_of_two_configurations_is_predicted():
    found = clock.ordering_rows(held_out())
    assert found["decode"]["pairs"] > 1500
    assert found["decode"]["faster_predicted"] > 0.9
    assert found["prefill"]["faster_predicted"] > 0.88


def test_pairs_that_are_nearly_as_fast_have_no_share_of_clear_ones():
    one = next(one for one in held_out() if one.split != "processor" and one.kind == "decode")
    speed = replace(one.speed, software=f"not {one.speed.software}", seconds=1.1 * one.speed.seconds)
    cells = clock.ordering_rows([one, replace(one, speed=speed, predicted_s=2 * one.predicted_s)])["decode"]
    assert (cells["pairs"], cells["faster_predicted"], cells["clear_pairs"]) == (1, 1.0, 0)
    assert cells["clear_faster_predicted"] is None


def test_every_power_mode_of_a_chip_that_has_several_is_scored_apart():
    found = clock.error_rows(held_out())["by power mode"]
    assert {"jetson_agx_orin_64gb 30W decode", "jetson_agx_orin_64gb MAXN decode"} <= set(found)
    assert not any(label.startswith("raspberry_pi_5") for label in found)
    near = [one for one in held_out() if one.split != "processor" and one.speed.software != "kernels"]
    assert sum(row["rows"] for row in found.values()) == sum(len(one.speed.chip.modes) > 1 for one in near)


class SeenRows:
    """A fit that remembers which rows it was fitted to, and which it was asked for."""

    def __init__(self) -> None:
        self.pairs: list[tuple[list[PublishedSpeed], list[PublishedSpeed]]] = []

    def refitted(self, rows: list[PublishedSpeed], _software: set[str]) -> "SeenRows":
        self.rows = rows
        return self

    def knows_software(self, _software: str) -> bool:
        return True

    def predict_s(self, rows: list[PublishedSpeed]) -> list[float]:
        self.pairs.append((self.rows, rows))
        return [row.seconds for row in rows]


def test_a_fit_has_seen_no_row_of_what_is_held_out_in_another_mode_or_board():
    """A source's rows of a processor and software stand or fall together; within a source those of a model."""
    seen = SeenRows()
    splits = iter(clock.hold_out(seen, speeds(), lambda done, total: None))
    origins = {
        "source": lambda one: (one.silicon, one.software, one.source),
        "model": lambda one: (one.silicon, one.software, one.source, one.architecture.name),
        "processor": lambda one: one.silicon,
    }
    for fitted, held in seen.pairs:
        (split,) = {next(splits).split for _ in held}
        assert {origins[split](one) for one in fitted}.isdisjoint({origins[split](one) for one in held})
    assert len(seen.pairs) == 3 + 4 + 6


def test_a_file_for_reports_has_the_errors_of_whole_processors_held_out():
    """That of conf is what `+experiment=clock` writes today."""
    chips = [CHIPS[name] for name in yaml.safe_load(EXPERIMENT.read_text())["stages"]["clock_scores"]["chips"]]
    written = list(csv.reader(clock.held_out_csv(held_out(), chips).splitlines()))
    with (CONF / "hardware" / "measured" / "held_out.csv").open(encoding="utf-8", newline="") as file:
        kept = list(csv.reader(file))
    assert [row[:4] for row in written] == [row[:4] for row in kept]
    assert [float(row[4]) for row in written[1:]] == pytest.approx([float(row[4]) for row in kept[1:]], abs=0.02)
    assert {row[0] for row in kept if row[1] == "transformers"} >= {"jetson_agx_orin_32gb", "jetson_agx_orin_64gb", ""}


def test_draws_know_the_modes_of_the_rows():
    """Those of conf are what `+experiment=clock` writes today."""
    chips = [CHIPS[name] for name in yaml.safe_load(EXPERIMENT.read_text())["stages"]["clock_scores"]["chips"]]
    modes = clock.measured_modes(speeds(), chips)
    assert modes == ClockErrors.read(CONF / "hardware" / "measured" / "errors.json").modes
    assert modes["macbook_m1"] == {"llama_cpp": ["gpu", "gpu_7_core"]}
    assert modes["jetson_agx_orin_32gb"] == modes["jetson_agx_orin_64gb"]  # one processor
    assert "30W" not in modes["jetson_agx_orin_64gb"]["vllm"]


def test_hypot_is_what_kernels_that_compute_and_read_take():
    found = clock.kernel_rows(speeds())
    assert {row["rows"] for row in found.values()} == {54}
    best = min(found, key=lambda name: found[name]["median_error"])
    assert best == "hypot, as used"
    assert found[best]["median_error"] < 0.03


def test_the_former_clock_stands_beside_today_s_on_the_same_rows():
    """Docs of 2026-11-23 say 24.8, 26.3 and 36.6 % for all rows of the chips that conf had then."""
    former = FormerClock.read(FORMER)
    rows = [speed for speed in speeds() if former.knows(speed) and speed.software != "kernels"]
    all_rows = {
        kind: [abs(former.predict_s(speed) / speed.seconds - 1) for speed in rows if speed.kind == kind]
        for kind in ("decode", "prefill", "batch")
    }
    assert {kind: len(own) for kind, own in all_rows.items()} == {"decode": 270, "prefill": 129, "batch": 11}
    medians = [float(np.median(own)) for own in all_rows.values()]
    assert medians == pytest.approx([0.248, 0.263, 0.366], abs=0.0015)
    for found in clock.before_rows(held_out(), former).values():
        assert found["decode"]["median_error"] < found["decode"]["before"] - 0.08
        assert found["prefill"]["median_error"] < found["prefill"]["before"] - 0.08
        assert found["batch"]["median_error"] > found["batch"]["before"]


def test_a_file_of_former_figures_that_cannot_be_read_names_its_line(tmp_path: Path):
    (tmp_path / "mine.csv").write_text(FORMER.read_text(encoding="utf-8").replace("0.5,0.75", "half,0.75", 1))
    with pytest.raises(ValueError, match=r"mine.csv, line 2: .*half.*launch_overhead_s are wanted"):
        FormerClock.read(tmp_path / "mine.csv")


def test_the_worst_rows_come_first():
    ratios = [max(row["ratio"], 1 / row["ratio"]) for row in clock.worst_rows(held_out()).values()]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > 2


def test_figures_of_a_processor_without_measurements_say_so():
    orin = chip("jetson_orin_nx_16gb")
    assert orin.software["tensorrt"].sources["all"].startswith("measured: fitted to 18 rows of 3 sources")
    assert orin.software["vllm"].sources["all"] == "unverified: no measurement here, as on jetson_agx_orin"


def test_a_scatter_plot_is_drawn(tmp_path: Path):
    clock.draw_scatter(held_out(), tmp_path / "scatter.png")
    assert [path.name for path in tmp_path.iterdir()] == ["scatter.png"]
