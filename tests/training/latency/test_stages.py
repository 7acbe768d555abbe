"""WISP's tables and figures of a profile: their rows hold the values of the artifact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.engines.models import ModelConfig, ModelPair
from serving.hardware.clock_draw import as_json
from serving.progress import silent
from tests.support.conf_files import architecture, chip, fleet
from tests.training.latency.made_up_timings import TRUE, made_up
from training.latency import stages
from training.latency.artifact import components, read_profile, write_profile
from training.latency.grid import ProfilingOptions
from training.latency.interference import InterferenceOptions, label, measured_rows, predicted_rows
from training.latency.model_profile import ModelProfile
from training.latency.timing import TimedRun, Timing

QUICK = ProfilingOptions(bootstraps=100)
PUBLISHED = InterferenceOptions(long_tokens=(500, 4000), cached_tokens=500)


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Path:
    """A profile of made-up timings with 2 % noise."""
    out = tmp_path_factory.mktemp("profile")
    cloud = ModelProfile("cloud", architecture("llama2_13b"), "nowhere", QUICK, made_up(0.02))
    write_profile(out, "made up", [cloud], {"processor": "none"})
    return out


def rows(out: Path) -> Any:
    return json.loads((out / "rows.json").read_text())


def test_the_table_has_the_scores_of_the_artifact(profile, fresh):
    stages.scores(out := fresh("scores"), profile=profile)
    report, found = json.loads((profile / "profile.json").read_text())["cloud"], rows(out)
    assert set(found) == {"cloud: Eq. 19, least squares", "cloud: as used"}
    used, plain = found["cloud: as used"], found["cloud: Eq. 19, least squares"]
    assert used["test set"] == report["held_out"]
    assert plain["training set"] == report["ordinary_least_squares"]["fitted"]
    assert used["cross-validation"]["r2"] == report["folds"]["r2"]
    assert used["test set"]["max_s"] >= used["test set"]["rmse_s"] >= used["test set"]["mae_s"]
    assert used["training set"]["configurations"] == 123
    assert plain["test set"]["mape"] > 2 * used["test set"]["mape"]  # it knows no further sessions


def test_coefficients_stand_beside_the_papers_and_what_these_ask_of_a_chip(profile, fresh):
    stages.coefficients(
        out := fresh("out"), profile=profile, chip=chip("a100_80gb"), architecture=architecture("qwen3_32b")
    )
    found = rows(out)
    assert (
        found["a"]["cloud here"]["low_s"] <= found["a"]["cloud here"]["value_s"] <= found["a"]["cloud here"]["high_s"]
    )
    peaks = {name: row["share_of_peak"] for name, row in found["a"].items() if "share_of_peak" in row}
    assert peaks == pytest.approx(
        {
            "WISP, section 4.4": 1.395,
            "WISP, Table 12": 6.04,
            "Eq. 19 fitted to the roofline of a100_80gb": peaks["Eq. 19 fitted to the roofline of a100_80gb"],
        },
        1e-2,
    )
    assert 0.4 < peaks["Eq. 19 fitted to the roofline of a100_80gb"] < 1.5  # decodes of few tokens are free in part
    assert found["c"]["WISP, Table 12"]["share_of_bandwidth"] > 2
    assert found["b_read"]["WISP, section 4.4"]["gbps"] == pytest.approx(2 * 64 * 8 * 128 * 2 / 2.67e-6 / 1e9)
    assert "WISP, section 4.4" not in found["c"]
    assert set(found["session"]) == {"cloud here"}
    assert "wake" not in found


def test_residuals_have_a_number_a_configuration(profile, fresh):
    stages.residuals(out := fresh("residuals"), profile=profile)
    test = rows(out)["cloud"]["test set"]
    assert len(test["relative_bias"]) == len(test["within_10_percent"]) == 50
    assert test["mape"] == pytest.approx(np.abs(test["relative_bias"]).tolist())
    assert np.mean(test["mape"]) == pytest.approx(
        json.loads((profile / "metrics.json").read_text())["cloud/held_out/mape"]
    )
    assert test["error_p5"] < 0 < test["error_p95"]
    assert test["max_underestimate"] == pytest.approx(-min(test["relative_bias"]))
    assert (out / "figures" / "cloud_fig9.png").read_bytes().startswith(b"\x89PNG")


def test_shares_of_latency_regimes_add_up(profile, fresh):
    where = {"chip": chip("a100_80gb"), "architecture": architecture("qwen3_32b")}
    stages.regimes(out := fresh("regimes"), profile=profile, **where)
    found = rows(out)
    counts = {kind: row["configurations"] for kind, row in found["cloud: training set"].items()}
    assert counts == {"compute-bound": 40, "memory-bound": 63, "mixed": 20}
    for group in found.values():
        for row in group.values():
            shares = [
                row[f"{part}_share"] for part in ("linear", "interactions", "cached", "constant", "sessions", "lm_head")
            ]
            assert np.sum(shares, axis=0) == pytest.approx(np.ones(row["configurations"]))
    paper = found["WISP, Table 12, qwen3_32b"]
    assert {kind: row["configurations"] for kind, row in paper.items()} == {"compute-bound": 25, "memory-bound": 48}
    assert "mae_s" not in paper["memory-bound"]
    whole = 33.14e-6 * 2000 + 34.5e-9 * 2000**2 + 14.86e-3
    assert max(paper["compute-bound"]["interactions_share"]) == pytest.approx(34.5e-9 * 2000**2 / whole)
    assert np.mean(paper["memory-bound"]["lm_head_share"]) == np.mean(paper["memory-bound"]["sessions_share"]) == 0


def test_parts_of_a_prediction_sum_to_it(profile):
    (model,) = read_profile(profile)
    points = model.sets["test set"]
    parts = components(points.terms, model.coefficients)
    assert np.sum(list(parts.values()), axis=0) == pytest.approx(model.predict_s(points))


def test_a_folder_without_a_report_is_refused(fresh):
    with pytest.raises(ValueError, match=r"profile\.json is no report of a profile .* give the artifact"):
        stages.scores(fresh("out"), profile=fresh("empty"))


def test_a_short_request_waits_for_a_long_one_in_its_batch(toy_pair, profile, fresh):
    large, small = toy_pair
    pair = ModelPair(
        ModelConfig(timed_architecture=architecture("tinyllama_1_1b"), path=small),
        ModelConfig(timed_architecture=architecture("llama2_13b"), path=large),
    )
    here = InterferenceOptions(long_tokens=(16, 200), cached_tokens=40, repeats=3, warmup_runs=2, pause_ms=0)
    cloud, told = fleet("a100_80gb", tensor_parallel=2), []
    stages.interference(
        out := fresh("out"),
        progress=lambda *each: told.append(each),
        pair=pair,
        local=here,
        published=PUBLISHED,
        fleet=cloud,
        architecture=architecture("llama2_70b"),
        profile=profile,
    )
    found = rows(out)
    assert told[-1] == (18, 18, "batches")
    ours, theirs = found["measured here"], found["llama2_70b on 2 x a100_80gb"]
    assert list(ours) == [label(16), label(200)]
    assert all(
        len(ours[label(200)][name]) == 3
        for name in ("solo_a_s", "solo_b_s", "batched_s", "batched_over_solo_a", "batched_over_solo_b")
    )
    assert min(ours[label(200)]["solo_a_s"]) > min(ours[label(16)]["solo_a_s"])
    first, last = theirs[label(500)], theirs[label(4000)]
    assert first["solo_b_s"] == last["solo_b_s"] < first["solo_a_s"] < last["solo_a_s"] < last["batched_s"]
    expected = TRUE.a_s * 21 + TRUE.b_compute_s * (16**2 + 45 * 5) + TRUE.b_read_s * 40 + TRUE.session_s + TRUE.c_s
    expected += TRUE.head_token_s * 10 + TRUE.head_c_s
    assert ours[label(16)]["predicted_s"] == pytest.approx(expected, rel=0.1)


def drawn_interference(out, errors):
    """The predicted rows in each of eight draws of the clock, on two A100s."""
    kinds = ("decode", "prefill", "decode_unmeasured", "prefill_unmeasured")
    (out / "errors.json").write_text(as_json(dict.fromkeys(kinds, errors)))
    stages.draw_interference(
        out, progress=silent, published=PUBLISHED, fleet=fleet("a100_80gb", tensor_parallel=2),
        architecture=architecture("llama2_70b"), errors=out / "errors.json", draws=8,
    )  # fmt: skip
    return [rows(out / str(draw))["llama2_70b on 2 x a100_80gb"] for draw in range(8)]


def test_the_rows_of_the_chip_model_are_predicted_on_each_draw_of_the_clock(fresh):
    """Without errors they are the rows themselves; with errors they differ, and a batch of both is no faster."""
    plain = predicted_rows(PUBLISHED, fleet("a100_80gb", tensor_parallel=2).latency(architecture("llama2_70b")))
    assert drawn_interference(fresh("plain"), [0.0]) == [plain] * 8
    drawn = [found[label(4000)] for found in drawn_interference(fresh("drawn"), [-0.9, 0.9])]
    assert len({row["batched_s"] for row in drawn}) > 1
    assert all(row["batched_s"] > row["solo_a_s"] > row["solo_b_s"] for row in drawn)


def test_a_disturbed_run_counts_by_its_processor_time():
    here = InterferenceOptions(long_tokens=(16,), cached_tokens=8)
    runs = ([TimedRun(2.0, 2.0)], [TimedRun(9.0, 1.0)], [TimedRun(3.0, 3.0)])
    timings = [Timing(shape, (), own) for shape, own in zip(here.shapes(), runs, strict=True)]
    row = measured_rows(here, timings, None)[label(16)]
    assert (row["solo_b_s"], row["batched_over_solo_a"], row["batched_over_solo_b"], row["predicted_s"]) == (
        [1.0],
        [1.5],
        [3.0],
        None,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"long_tokens": ()}, "one or more are wanted"),
        ({"long_tokens": (4,)}, "none below num_drafts=5"),
        ({"cached_tokens": 0}, "cached_tokens=0"),
    ],
)
def test_invalid_interference_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        InterferenceOptions(**options)
