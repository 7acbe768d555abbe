"""A job from its records to the table, the figures, job.json and MLflow."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.artifacts import manifest
from pipeline.artifacts.stage import Stage
from pipeline.report import job as report
from pipeline.report.context import JobContext, StageRun
from pipeline.report.job_result import read_result
from pipeline.report.mlflow_store import Tracking
from pipeline.report.records import RecordsError
from tests.pipeline.report.serve_artifact import drawn, request, write

SECRET = "s3cret-value"
CONFIG = {
    "policy": {
        "_target_": "serving.policy.policy.Policy",
        "name": "synera",
        "draft": {"_target_": "serving.policy.slots.draft.WindowDraft", "k": 4},
        "offload": {
            "_target_": "serving.policy.slots.importance_offload.SyneraOffload",
            "budget": 0.2,
            "calibration": "share",
        },
        "lookahead": {"_target_": "serving.policy.slots.lookahead.NoLookahead"},
    },
    "model": {
        "device": {"timed_architecture": "tinyllama_1_1b"},
        "cloud": {"timed_architecture": "llama2_13b", "api_key": SECRET},
    },
    "hardware": {"cloud": {"chip": "rtx_a6000"}},
    "network": {"uplink_mbps": 3.9, "downlink_mbps": 4.8, "delay_ms": 40, "loss": 0.01},
    "seed": 7,
}


@pytest.fixture
def artifact(tmp_path):
    return drawn(tmp_path / "serve", n=12)


def trained(folder: Path) -> StageRun:
    """A stage's artifact: a report, weights, and its record."""
    stage = Stage("device_model", "training.embedded_pair.stages.train", {"steps": 500, "hub_token": SECRET})
    folder.mkdir()
    (folder / "training.json").write_text(json.dumps({"loss": 0.5, "speed": {"tokens_per_s": 900}, "name": "small"}))
    (folder / "model.safetensors").write_bytes(bytes(64))
    manifest.write_manifest(stage, folder, 12.5)
    return StageRun(stage.name, stage.key, "train", folder, 12.5, True)


def context(tmp_path: Path, tracking: Tracking, **changes: object) -> JobContext:
    known: dict[str, object] = {
        "overrides": ("+policy=synera", "network=lte", f"model.cloud.api_key={SECRET}"),
        "choices": {"hardware": "jetson_orin", "network": "lte", "policy/draft": "window", "policy/offload": "synera"},
        "digest": "d1g3st",
        "revision": "abc",
        "versions": {"torch": "2.13.0"},
        "machine": {"cores": 2},
    }
    return JobContext(tmp_path / "job", tracking, CONFIG, **known | changes)  # type: ignore[arg-type]


OFF = Tracking(uri="none")


def test_the_table_shows_setup_and_results(artifact, tmp_path):
    file = io.StringIO()
    report.report_job(artifact, context(tmp_path, OFF), file)
    text = file.getvalue()
    for part in (
        "synera | jetson_orin | lte | 12 requests",
        "tinyllama_1_1b on 4 x orin 30W; time: roofline, derived",
        "llama2_13b on rtx_a6000",
        "3.9 Mbit/s up, 4.8 Mbit/s down, 40 ms delay, 1.0% lost",
        "draft window (k=4), offload synera (budget=0.2, calibration=share), lookahead NoLookahead",
        "seed 0, code abc, torch 2.13.0",
        "exact match 0.667, 95 % interval",
        "(budget 20.0 %)",
        "with the cloud's own token",
        "Pf 6 (Synera, Table 3)",
        "tokens: the embedded pair; time: emulated",
    ):
        assert part in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
    assert SECRET not in text


def test_without_mlflow_table_figures_and_result_are_written(artifact, tmp_path):
    done = report.report_job(artifact, context(tmp_path, OFF), io.StringIO())
    assert (done.ui_hint, done.result.run_id) == (None, None)
    assert read_result(tmp_path / "job") == done.result
    assert done.result.metrics["quality/mean"] == pytest.approx(2 / 3)
    assert [path.name for path in done.figures if path.exists()] == ["latency.png", "timeline.png"]
    assert not list(tmp_path.rglob("*.db"))


@pytest.mark.parametrize(("mode", "num_lines"), [("line", 1), ("quiet", 0)])
def test_a_job_of_a_sweep_prints_one_line_and_leaves_its_report_in_a_file(artifact, tmp_path, mode, num_lines):
    file = io.StringIO()
    stage = replace(trained(tmp_path / "device_model"), cached=False)
    sweep = tmp_path / "sweep"
    asked = context(tmp_path, OFF, number=3, sweep=sweep, report=mode, stages=(stage,))
    done = report.report_job(artifact, asked, file)
    lines = file.getvalue().splitlines()
    assert len(lines) == num_lines
    assert (tmp_path / "job" / "report.txt").read_text() == done.text
    for line in lines:
        assert line.startswith("job 3, synera: quality 0.667, TTFT ")
        assert line.endswith(f"; 12.5 s to build device_model; {tmp_path / 'job' / 'report.txt'}")


def test_mlflow_gets_the_run_with_everything_but_secrets(artifact, tmp_path, tracking):
    file = io.StringIO()
    stage = trained(tmp_path / "device_model")
    done = report.report_job(artifact, context(tmp_path, tracking, stages=(stage,)), file)
    client, experiment_id = tracking.connect()
    job = client.get_run(done.result.run_id)
    assert file.getvalue().splitlines()[-1].endswith(f"/#/experiments/{experiment_id}/runs/{done.result.run_id}")
    assert job.info.status == "FINISHED"
    assert job.info.run_name == "synera network=lte model.cloud.api_key=***"
    assert job.data.params["policy.offload.budget"] == "0.2"
    assert job.data.params["model.cloud.api_key"] == "***"
    assert job.data.metrics["latency/tbt_s/p99"] == done.summary["latency/tbt_s/p99"]
    assert job.data.tags["tandem.digest"] == "d1g3st"
    found = {item.path for item in client.list_artifacts(job.info.run_id)}
    assert found == {"records", "figures", "config.yaml", "overrides.txt", "environment.json", "report.txt"}
    assert len(client.list_artifacts(job.info.run_id, "records")) == 4
    environment = json.loads(next((tmp_path / "mlflow").rglob("environment.json")).read_text())
    assert environment["seeds"]["seed"] == 7
    assert environment["machine"] == {"cores": 2}


def test_a_stage_is_a_nested_run_with_its_lineage(artifact, tmp_path, tracking):
    stage = trained(tmp_path / "device_model")
    done = report.report_job(artifact, context(tmp_path, tracking, stages=(stage,)), io.StringIO())
    client, experiment_id = tracking.connect()
    (run,) = client.search_runs([experiment_id], f"tags.`mlflow.parentRunId` = '{done.result.run_id}'")
    assert run.info.run_name == stage.key
    assert run.data.params == {"steps": "500", "hub_token": "***"}
    numbers = {"seconds": 12.5, "training/loss": 0.5, "training/speed/tokens_per_s": 900.0}
    assert run.data.metrics == numbers
    assert run.data.tags["tandem.cached"] == "True"
    assert run.data.tags["tandem.target"] == "training.embedded_pair.stages.train"
    assert [item.path for item in client.list_artifacts(run.info.run_id, "artifact")] == ["artifact/training.json"]
    files = json.loads(next((tmp_path / "mlflow").rglob("files.json")).read_text())
    assert files["model.safetensors"]["nbytes"] == 64


def test_no_secret_reaches_any_file_of_the_report(artifact, tmp_path, tracking, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "environment-value")
    report.report_job(artifact, context(tmp_path, tracking), io.StringIO())
    report.report_failure(OSError(f"refused by http://me:{SECRET}@host"), context(tmp_path, tracking), io.StringIO())
    written = [*(tmp_path / "job").rglob("*"), *(tmp_path / "mlflow").rglob("*"), tmp_path / "mlflow.db"]
    contents = b"".join(path.read_bytes() for path in written if path.is_file())
    assert b"llama2_13b" in contents
    assert SECRET.encode() not in contents
    assert b"environment-value" not in contents


def test_a_store_that_fails_loses_no_result(artifact, tmp_path):
    (tmp_path / "file").write_text("")
    file = io.StringIO()
    done = report.report_job(artifact, context(tmp_path, Tracking(uri=f"sqlite:///{tmp_path}/file/x.db")), file)
    assert done.ui_hint is None
    assert "exact match 0.667" in file.getvalue()
    assert f"MLflow: could not log to sqlite:///{tmp_path}/file/x.db" in file.getvalue()
    assert read_result(tmp_path / "job").status == "complete"


def test_a_failed_job_is_recorded_with_its_reason(tmp_path, tracking):
    failed = report.report_failure(ValueError("llama2_70b does not fit"), context(tmp_path, tracking), io.StringIO())
    run = tracking.connect()[0].get_run(failed.run_id)
    assert (run.info.status, run.data.tags["tandem.error"]) == ("FAILED", "llama2_70b does not fit")
    assert read_result(tmp_path / "job") == failed
    assert failed.error == "llama2_70b does not fit"


def test_a_damaged_record_is_refused(artifact, tmp_path):
    (artifact / "requests.parquet").write_bytes(b"PAR1")
    with pytest.raises(RecordsError, match="cannot be read as the record"):
        report.report_job(artifact, context(tmp_path, OFF), io.StringIO())


def test_the_table_names_the_source_of_tokens_and_time(tmp_path):
    file, said = io.StringIO(), {"runtime": "emulated", "runtime_described": "time from the chips"}
    report.report_job(write(tmp_path / "x", [request("a", ["cloud"], [0.5])], **said), context(tmp_path, OFF), file)
    assert "emulated: time from the chips" in file.getvalue()


def test_unknown_energy_cost_and_quality_are_shown_as_unknown(tmp_path):
    lone = request("a", ["cloud"], [0.5])
    file = io.StringIO()
    report.report_job(
        write(tmp_path / "lone", [lone], packing_factor=None, lossless=True), context(tmp_path, OFF), file
    )
    text = " ".join(file.getvalue().split())
    for part in (
        "quality not measured",
        "drafts none",
        "- J a token",
        "for want of a packing factor",
        "lossless every",
    ):
        assert part in text
