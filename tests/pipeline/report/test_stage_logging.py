"""What a stage's artifact shows is logged in the stage's own run, and in the run of a job that ends with it."""

import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.artifacts import manifest
from pipeline.artifacts.stage import Stage
from pipeline.report import context
from pipeline.report import job as report
from pipeline.report.context import JobContext, StageRun
from pipeline.report.job_result import read_result
from pipeline.report.mlflow_logger import NOTE_TAG, MlflowLogger
from pipeline.report.mlflow_stages import log_stages, stage_experiment
from tests.pipeline.report.serve_artifact import drawn

pytestmark = pytest.mark.usefixtures("undrawn")

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


def test_a_stage_is_logged_once_and_linked_to_by_the_jobs_that_use_it(tmp_path, tracking):
    stage = shown(tmp_path / "stage", json.dumps({"cloud/held_out/mape": 0.05}))
    done = [
        report.report_job(
            drawn(tmp_path / f"serve{n}", n=4),
            JobContext(tmp_path / f"job{n}", tracking, {"policy": {"name": "sled"}}, stages=(stage,)),
            io.StringIO(),
        )
        for n in range(2)
    ]
    client, _ = tracking.connect()
    (run,) = client.search_runs([stage_experiment(tracking)])
    assert run.data.metrics["metrics/cloud/held_out/mape"] == 0.05
    files = [item.path for item in client.list_artifacts(run.info.run_id, "figures")]
    assert files == ["figures/cloud_predicted.png", "figures/cloud_residuals.png"]
    for job in (client.get_run(one.result.run_id) for one in done):
        assert job.data.tags["tandem.stages"] == run.info.run_id
        assert (
            f"[local_latency](#/experiments/{run.info.experiment_id}/runs/{run.info.run_id})" in job.data.tags[NOTE_TAG]
        )


def test_names_that_mlflow_does_not_take_are_changed(tmp_path, tracking):
    stage = shown(tmp_path / "stage", json.dumps({"WISP, 32B, 8 tokens//s (mean)/capacity": 12, "shares/50 %": [1, 2]}))
    log_stages(MlflowLogger.open(tracking), [stage])
    client, _ = tracking.connect()
    (run,) = client.search_runs([stage_experiment(tracking)])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["metrics/WISP_ 32B_ 8 tokens/s _mean_/capacity"] == 12
    assert run.data.metrics["metrics/shares/50 _"] == 2


def test_a_stage_whose_settings_cannot_be_read_is_logged(tmp_path, tracking):
    stage = shown(tmp_path / "stage", "{}")
    (stage.path / manifest.MANIFEST_FILE).unlink()
    log_stages(MlflowLogger.open(tracking), [stage])
    client, _ = tracking.connect()
    (run,) = client.search_runs([stage_experiment(tracking)])
    assert (run.info.status, run.data.params) == ("FINISHED", {})


def test_a_stage_that_was_built_again_has_another_run(tmp_path, tracking):
    """It has the same digest; a job that was linked to the former run showed the former numbers."""
    stage, logger = shown(tmp_path / "stage", '{"mape": 0.05}'), MlflowLogger.open(tracking)
    (first,) = log_stages(logger, [stage])
    (stage.path / "metrics.json").write_text('{"mape": 0.04}')
    file = stage.path / manifest.MANIFEST_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | {"built": "2027-01-02T03:04:05+00:00"}))
    (second,) = log_stages(logger, [stage])
    assert first.run_id != second.run_id
    assert logger.client.get_run(second.run_id).data.metrics["metrics/mape"] == 0.04
    assert log_stages(logger, [stage]) == [second]


def test_jobs_at_once_log_a_stage_once(tmp_path, tracking):
    stage = shown(tmp_path / "stage", "{}")
    stage_experiment(tracking)
    loggers = [MlflowLogger.open(tracking) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda logger: log_stages(logger, [stage])[0].run_id, loggers))
    assert len(set(found)) == 1


def test_a_job_that_ends_with_a_report_logs_its_numbers_and_figures(tmp_path, tracking):
    stage = shown(tmp_path / "stage", json.dumps({"cloud/held_out/mape": 0.05}))
    report.report_stage(JobContext(tmp_path / "job", tracking, {}, stages=(stage,)), stage.path, io.StringIO())
    client, experiment_id = tracking.connect()
    (job,) = client.search_runs([experiment_id])
    assert job.data.metrics["local_latency/cloud/held_out/mape"] == 0.05
    assert read_result(tmp_path / "job").run_id == job.info.run_id
    files = [item.path for item in client.list_artifacts(job.info.run_id, "local_latency")]
    assert files == ["local_latency/cloud_predicted.png", "local_latency/cloud_residuals.png"]
