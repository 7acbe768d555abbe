"""Published speeds: the project's file, what is fitted to it, and how well that predicts rows that it has not seen."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from serving.hardware.chip import SoftwareEfficiency, roofline
from tests.support.conf_files import CONF, architecture, chip, names
from training.latency import clock
from training.latency.published_speeds import PublishedSpeed, read_speeds
from training.latency.speed_fit import SpeedFit

FILE = CONF / "hardware" / "measured" / "speeds.csv"
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
        ("seconds", "-1", "line 2: batch and new_tokens are 1 or more"),
        ("batch", "many", "line 2: invalid literal"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, column: str, value: str, message: str):
    import csv

    row = dict(zip(HEADER.split(","), next(csv.reader([GOOD])), strict=True)) | {column: value}
    with (tmp_path / "mine.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, row)
        table.writeheader()
        table.writerow(row)
    with pytest.raises(ValueError, match=f"mine.csv, {message}"):
        read_speeds(tmp_path / "mine.csv", CHIPS, MODELS)


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
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".pdf", ".svg"}
