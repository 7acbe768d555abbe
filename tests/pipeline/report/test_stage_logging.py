"""What a stage's artifact shows is logged in the run of each job that uses it."""

import io
import json
from pathlib import Path

import pytest

from pipeline.artifacts import manifest
from pipeline.artifacts.stage import Stage
from pipeline.report import context
from pipeline.report import job as report
from pipeline.report.context import JobContext, StageRun
from tests.pipeline.report.serve_artifact import drawn

PNG = b"\x89PNG\r\n"


def shown(folder: Path, text: str | None) -> StageRun:
    stage = Stage("local_latency", "training.latency.stages.profile_latency", {"seed": 0})
    (folder / "figures").mkdir(parents=True)
    for name in ("cloud_residuals.png", "cloud_predicted.png", "notes.txt"):
        (folder / "figures" / name).write_bytes(PNG)
    if text is not None:
        (folder / "metrics.json").write_text(text)
    manifest.write_manifest(stage, folder, 1.0)
    return StageRun(stage.name, stage.key, "profile", folder, 1.0, True)


def test_metrics_of_a_stage_are_prefixed_with_its_name(tmp_path):
    stage = shown(tmp_path / "a", '{"cloud/held_out/mape": 0.05, "runs": 7, "ok": true, "note": "x", "none": null}')
    assert context.stage_metrics(stage) == {"local_latency/cloud/held_out/mape": 0.05, "local_latency/runs": 7.0}


@pytest.mark.parametrize("text", [None, "{", "[1, 2]", '{"a": NaN, "b": Infinity}'])
def test_an_invalid_metrics_file_is_ignored(tmp_path, text):
    assert context.stage_metrics(shown(tmp_path / "a", text)) == {}


def test_a_job_logs_the_metrics_and_figures_of_its_stages(tmp_path, tracking):
    stage = shown(tmp_path / "stage", json.dumps({"cloud/held_out/mape": 0.05}))
    context = JobContext(tmp_path / "job", tracking, {"policy": {"name": "sled"}}, stages=(stage,))
    done = report.report_job(drawn(tmp_path / "serve", n=4), context, io.StringIO())
    client, _ = tracking.connect()
    assert client.get_run(done.result.run_id).data.metrics["local_latency/cloud/held_out/mape"] == 0.05
    files = [item.path for item in client.list_artifacts(done.result.run_id, "local_latency")]
    assert files == ["local_latency/cloud_predicted.png", "local_latency/cloud_residuals.png"]
