"""Predictions beside real runs: the arithmetic on made-up numbers, the order of the two, and the stages."""

import json
from pathlib import Path

import pytest

from pipeline import api
from pipeline.report.real_run import (
    PredictedMetric,
    check_write_predictions,
    compare_real_run,
    write_predictions,
)
from pipeline.running import create_job
from tests.pipeline.report.serve_artifact import request, write

TTFT, BUSY = "latency/ttft_s/mean", "cost/chip_s_per_token"
EARLY, LATE = "2020-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00"


def row(predicted: float, *measured: float) -> PredictedMetric:
    return PredictedMetric("sled", TTFT, predicted, measured)


def test_an_error_is_measured_from_the_median_and_compared_with_the_greatest_distance_from_it() -> None:
    near = row(0.11, 0.12, 0.09, 0.1)
    assert near.median == 0.1
    assert near.error == pytest.approx(0.1)
    assert near.spread == pytest.approx(0.2)
    assert near.exceeds is False
    far = row(0.07, 0.12, 0.09, 0.1)
    assert far.error == pytest.approx(-0.3)
    assert far.exceeds is True


def test_the_median_of_two_repeats_lies_between_them() -> None:
    assert row(0.2, 0.1, 0.3).median == pytest.approx(0.2)
    assert row(0.2, 0.1, 0.3).spread == pytest.approx(0.5)


def test_nothing_is_judged_where_nothing_was_measured() -> None:
    zero = row(0.0, 0.0, 0.0)
    assert (zero.error, zero.spread, zero.exceeds) == (None, None, None)


def test_one_repeat_has_an_error_and_no_spread() -> None:
    once = row(0.2, 0.1)
    assert once.error == pytest.approx(1.0)
    assert (once.spread, once.exceeds) == (None, None)


def runs(folder: Path, ttfts_s: dict[str, list[float]], began: str) -> Path:
    """A folder as `serve_policies` writes it: by policy the first token's time in each repeat, of one request."""
    listed = []
    for name, repeats in ttfts_s.items():
        for repeat, ttft_s in enumerate(repeats):
            rows = [request("r0", ["device", "cloud"], [ttft_s, ttft_s + 1.0])]
            write(folder / name / str(repeat), rows, policy=name)
            listed.append({"policy": name, "repeat": repeat, "began": began, "ended": began, "load": 0.5 + repeat})
    (folder / "runs.json").write_text(json.dumps(listed))
    return folder


def compared(tmp_path: Path, began: str = LATE) -> Path:
    predicted = runs(tmp_path / "predicted", {"sled": [0.07], "alone": [0.2]}, EARLY)
    measured = runs(tmp_path / "measured", {"sled": [0.12, 0.09, 0.1], "alone": [0.21, 0.2, 0.19]}, began)
    for name in ("predictions", "out"):
        (tmp_path / name).mkdir()
    write_predictions(tmp_path / "predictions", runs=predicted, metrics=(TTFT, BUSY))
    compare_real_run(tmp_path / "out", predictions=tmp_path / "predictions", predicted=predicted, measured=measured)
    return tmp_path / "out"


def test_the_table_has_a_row_of_each_policy_and_metric(tmp_path: Path) -> None:
    text = (compared(tmp_path) / "real_run.txt").read_text()
    assert "predicted and measured: 2 policies, 3 repeats of 1 requests" in text
    lines = {tuple(line.split()[:2]): line.split() for line in text.splitlines()}
    assert lines["sled", "TTFT,"][3:] == ["70.0", "100", "90.0", "to", "120", "-30.0", "±", "20.0", "yes"]
    assert lines["alone", "TTFT,"][3:] == ["200", "200", "190", "to", "210", "+0.0", "±", "5.0", "no"]
    assert lines["sled", "cloud"][-3:] == ["-", "-", "-"]
    assert "0.5 to 2.5 processes wanted a core as the runs began" in text
    assert "sled 1 of 1; alone 1 of 1" in text
    assert "transport check" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_report_and_its_numbers_hold_both_times_and_all_errors(tmp_path: Path) -> None:
    out = compared(tmp_path)
    found = json.loads((out / "real_run.json").read_text())
    written = json.loads((tmp_path / "predictions" / "predictions.json").read_text())["written"]
    assert found["written"] == written < found["began"]
    assert [(one["policy"], one["exceeds"]) for one in found["rows"]][::2] == [("sled", True), ("alone", False)]
    numbers = json.loads((out / "metrics.json").read_text())
    assert numbers[f"error/sled/{TTFT}"] == pytest.approx(-0.3)
    assert (numbers["rows"], numbers["beyond_spread"]) == (2, 1)
    assert numbers["median_error"] == pytest.approx(0.15)


def test_predictions_that_are_younger_than_the_runs_predict_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"they predict nothing.*force=\[measured\]"):
        compared(tmp_path, began=EARLY)


def test_an_unknown_metric_is_refused_before_any_run() -> None:
    with pytest.raises(ValueError, match="there is no metric 'latency/tftt'"):
        check_write_predictions(metrics=(TTFT, "latency/tftt"))


def test_real_runs_need_the_predictions_and_these_the_profile_of_both_machines() -> None:
    with api.composed("experiment=real_run") as cfg:
        plan = create_job(cfg).plan("real_run")
    needed = {
        name: {stage.name for stage in plan.stages[name].ancestors.values()} for name in ("predictions", "measured")
    }
    assert {"predictions", "predicted", "local_latency"} <= needed["measured"]
    assert {"predicted", "local_latency"} <= needed["predictions"]
    assert "measured" not in needed["predictions"]
    setup = plan.stages["measured"].args["setup"]
    assert [(setup["pair"][side]["threads"], setup["pair"][side]["dtype"]) for side in ("device", "cloud")] == [
        (1, "bf16"), (2, "fp32"),
    ]  # fmt: skip
    assert plan.stages["measured"].args["runtime"]["pace"] == "wall"
    assert list(plan.stages["measured"].args["policies"]) == list(plan.stages["predicted"].args["policies"])
    assert len(plan.stages["measured"].args["policies"]) == 5
