"""The artifact of a profile of a real engine, on a machine of any speed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from pathlib import Path

import pytest
import yaml

from serving.deployment import model_loading
from serving.engines.models import ModelConfig, ModelPair
from serving.hardware.architecture import Architecture
from serving.hardware.chip import Chip, PowerMode
from serving.hardware.fitted_latencies import load_fitted_latencies
from serving.hardware.fleet import Fleet
from serving.hardware.latency import COEFFICIENTS, batch_load
from serving.policy.policy import EngineRequirements
from serving.progress import silent
from tests.support.conf_files import architecture, fits
from training.latency.grid import CATEGORIES, ProfilingOptions
from training.latency.stages import profile_latency, profile_published

QUICK = ProfilingOptions(configurations=20, held_out=10, repeats=2, max_session_tokens=128, bootstraps=100)
TOY = Architecture("toy", 2, 32, 2, 2, 16, 64, 300, 0, "toy")


def pair_of(checkpoints: tuple[Path, Path]) -> ModelPair:
    large, small = checkpoints
    return ModelPair(
        ModelConfig(timed_architecture=architecture("tinyllama_1_1b"), path=small),
        ModelConfig(timed_architecture=architecture("llama2_13b"), path=large),
    )


@pytest.fixture(scope="module")
def told() -> list[tuple[int, int, str]]:
    return []


@pytest.fixture(scope="module")
def profile(toy_pair, tmp_path_factory, told) -> Path:
    out = tmp_path_factory.mktemp("profile")
    profile_latency(out, progress=lambda *each: told.append(each), pair=pair_of(toy_pair), options=QUICK)
    return out


def test_fitted_coefficients_are_loaded_for_serving(profile):
    found = load_fitted_latencies(profile)
    assert set(found.latencies) == {"tinyllama_1_1b", "llama2_13b"}
    for name, latency in found.latencies.items():
        assert latency.layers == architecture(name).layers
        assert all(isfinite(getattr(latency, one)) and getattr(latency, one) >= 0 for one in COEFFICIENTS)
        assert latency.seconds(batch_load(latency.layers, [(64, 1)], 1)) > 0
        assert latency.source.startswith("measured: here (")


def test_each_model_is_timed_on_its_own_threads_and_says_so(toy_pair, fresh, monkeypatch):
    used = []
    monkeypatch.setattr("torch.set_num_threads", used.append)
    monkeypatch.setattr("training.latency.profile_text.save_figure", lambda *_: None)  # takes seconds
    pair = pair_of(toy_pair)
    unlike = replace(pair, device=replace(pair.device, dtype="bf16"), cloud=replace(pair.cloud, threads=2))
    folder = fresh("profile")
    few = replace(QUICK, configurations=12, held_out=6, repeats=1)
    profile_latency(folder, progress=silent, pair=unlike, options=few)
    assert used[-2:] == [1, 2]
    found = load_fitted_latencies(folder).latencies
    assert ", 1 thread, bf16): device" in found["tinyllama_1_1b"].source
    assert ", 2 threads, fp32): cloud" in found["llama2_13b"].source
    assert json.loads((folder / "profile.json").read_text())["cloud"]["undisturbed_share"] is None


def test_the_profile_report_holds_all_measurements(profile, told):
    report = json.loads((profile / "profile.json").read_text())
    assert (report["machine"]["threads"], report["machine"]["device"]) == (1, "cpu")
    assert report["machine"]["thread_handoff_s"] > 0
    assert report["options"]["repeats"] == 2
    for side in ("device", "cloud"):
        rows = report[side]["measurements"]
        assert [row["use"] for row in rows].count("held out") == report[side]["held_out"]["configurations"] == 10
        assert {row["category"] for row in rows} == set(CATEGORIES)
        assert all(len(row["runs"]) == 2 and 0 < row["min_s"] <= row["median_s"] <= row["max_s"] for row in rows)
        assert 0 <= report[side]["undisturbed_share"] <= 1
        assert set(report[side]["intervals"]) == set(COEFFICIENTS)
        assert report[side]["ordinary_least_squares"]["coefficients"]["head_token_s"] == 0
        assert report[side]["omitted"] == ""
    assert told[-1] == (60, 60, "cloud")


def test_the_profile_text_describes_its_quality(profile):
    text = (profile / "profile.txt").read_text()
    for part in (
        "device, timed as tinyllama_1_1b",
        "cloud, timed as llama2_13b",
        "20 configurations fitted on, 10 held out, 2 runs of each or more, 10 warm-ups",
        "95 % interval",
        "cross-validation in 5 folds: R2",
        "memory-bound deterministic",
        "prefill of 128 tokens",
        "handing work to another thread (",
    ):
        assert part in text
    assert "CUT" not in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_profile_writes_figures_and_metrics(profile):
    metrics = json.loads((profile / "metrics.json").read_text())
    assert {"cloud/held_out/mape", "device/decode_behind_128_s", "cloud/a_s", "cloud/folds/r2"} <= set(metrics)
    assert all(isinstance(value, float) for value in metrics.values())
    drawn = sorted((profile / "figures").glob("*.png"))
    assert [path.stem for path in drawn] == [
        "cloud_predicted", "cloud_residuals", "device_predicted", "device_residuals",
    ]  # fmt: skip
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_a_profile_may_keep_its_named_chip(profile):
    node = yaml.safe_load((profile / "chip.yaml").read_text())
    assert node.pop("_target_") == "serving.hardware.chip.Chip"
    modes = {name: PowerMode(**mode) for name, mode in node.pop("modes").items()}
    sets = {name: fits(**each) for name, each in node.pop("fitted").items()}
    chip = Chip(modes=modes, fitted=sets, **node)
    assert chip.unsourced() == ()
    assert sets["measured"].source.startswith("measured: profile of this machine")
    for name, latency in load_fitted_latencies(profile).latencies.items():
        assert Fleet(chip, timing="measured").latency(architecture(name)) == latency


def test_two_models_under_one_name_are_refused(toy_pair, fresh):
    pair = pair_of(toy_pair)
    same = replace(pair, device=replace(pair.device, timed_architecture=pair.cloud.timed_architecture))
    with pytest.raises(ValueError, match=r"two models are timed as llama2_13b.*give each its own"):
        profile_latency(fresh("profile"), progress=silent, pair=same)


def test_published_shapes_are_profiled_within_the_budget(fresh, monkeypatch):
    monkeypatch.setattr("training.latency.profile_text.save_figure", lambda *_: None)  # takes seconds
    out, deep = fresh("profile"), replace(TOY, name="deep", layers=4)
    effort = replace(QUICK, repeats=3, budget_s=1e-9)
    profile_published(
        out, progress=silent, draft_architectures=(TOY,), target_architectures=(deep,), dtype="fp32", options=effort
    )
    assert {name: found.layers for name, found in load_fitted_latencies(out).latencies.items()} == {"toy": 2, "deep": 4}
    report = json.loads((out / "profile.json").read_text())
    for name in ("toy", "deep"):
        assert report[name]["omitted"].endswith("of 30 configurations, 1 of 3 rounds of repeats, 1 of 10 warm-ups")
        assert report[name]["fitted"]["configurations"] >= 12
    assert (out / "profile.txt").read_text().count("CUT by budget_s=1e-09") == 2


def test_a_budget_without_any_published_shape_is_refused(fresh):
    with pytest.raises(
        ValueError, match="no architecture is named; set draft_architectures, target_architectures or both"
    ):
        profile_published(fresh("profile"), progress=silent)


def test_models_that_do_not_fit_are_refused_before_measuring(fresh):
    told, huge = [], replace(TOY, name="huge", hidden_size=2**20, heads=2**16)
    with pytest.raises(ValueError, match=r"huge does not fit into the .* that are free here, in fp16: weights"):
        profile_published(
            fresh("profile"),
            progress=lambda *each: told.append(each),
            draft_architectures=(TOY,),
            target_architectures=(huge,),
            options=QUICK,
        )
    assert told == []


def test_the_models_of_a_profile_are_packed_as_those_that_serve_one_session(
    toy_pair: tuple[Path, Path], fresh: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[EngineRequirements] = []

    def load(_device: object, _cloud: object, _place: str, requirements: EngineRequirements) -> None:
        asked.append(requirements)
        raise InterruptedError

    monkeypatch.setattr(model_loading, "load_models", load)
    with pytest.raises(InterruptedError):
        profile_latency(fresh("profile"), progress=silent, pair=pair_of(toy_pair), options=QUICK)
    assert [(one.drafter_rows, one.target_rows) for one in asked] == [(1, None)]
