"""A multirun in a process of its own: the jobs meet in files, one table ends it."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pipeline.errors import BAD_INPUT
from pipeline.report import sweep
from pipeline.report.context import JobContext
from pipeline.report.mlflow_store import Tracking
from pipeline.report.sweep_note import SweepNote
from tests.pipeline.report.serve_artifact import drawn

SWEEP_PROGRAM = Path(__file__).parents[2] / "programs" / "run_sweep.py"


def run(artifact: Path, outputs: Path, policies: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        str(SWEEP_PROGRAM),
        str(artifact),
        "-m",
        f"policy={policies}",
        f"outputs={outputs}",
        *words,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_sweep_compares_its_jobs_and_survives_a_failed_one(tracking, tmp_path):
    done = run(drawn(tmp_path / "serve"), tmp_path, "synera,bad,killed,sled")
    assert done.returncode == sweep.JOB_FAILED, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert "2 of 4 jobs complete" in lines
    assert any(line.startswith("1    bad     failed: there is no such thing") for line in lines)
    assert any(line.startswith("2    killed  no result: the job was killed") for line in lines)
    assert lines[-1].startswith("MLflow: ")
    assert (tmp_path / "sweep" / "comparison.csv").exists()
    check_runs(tracking, json.loads((tmp_path / "sweep" / "sweep.json").read_text())["run_id"], lines[-1])


def test_an_interrupted_sweep_compares_what_is_there_and_ends_its_run(tracking, tmp_path):
    done = run(drawn(tmp_path / "serve"), tmp_path, "synera,interrupted,sled")
    lines = done.stdout.splitlines()
    assert "1 of 2 jobs complete" in lines
    assert lines[-1] == "interrupted: 1 jobs are complete. The same command goes on: what was built is kept."
    client, _ = tracking.connect()
    parent = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["run_id"]
    assert client.get_run(parent).info.status == "KILLED"


def test_a_sweep_whose_jobs_left_nothing_fails(tmp_path, capsys):
    callback = sweep.SweepCallback(Tracking(uri="none", outputs=str(tmp_path)), io.StringIO())
    callback.folder = tmp_path
    with pytest.raises(SystemExit, match=str(sweep.JOB_FAILED)):
        callback.on_multirun_end(OmegaConf.create({"stage": "all"}))
    assert f"no job of this sweep left anything in {tmp_path}" in capsys.readouterr().err


EXHIBIT = (
    "+exhibit={title: Table 4, columns: [{name: quality}], rows: {label: '{policy}'}, reported: {sled: {quality: 0.5}},"
    "figure: {x: '{row}', y: quality}, claims: [{statement: both are equal, row: sled, "
    "baseline: synera, metric: quality, relation: equal, margin: 0.1}]}"
)


def test_a_sweep_logs_its_exhibit_in_its_own_run(tracking, tmp_path):
    done = run(drawn(tmp_path / "serve"), tmp_path, "synera,sled", EXHIBIT)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "holds  both are equal: +0 [+0, +0]" in done.stdout
    client, _ = tracking.connect()
    run_id = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["run_id"]
    assert {f"exhibit.{kind}" for kind in ("txt", "json", "csv", "png")} <= {
        item.path for item in client.list_artifacts(run_id)
    }
    metrics = client.get_run(run_id).data.metrics
    assert (metrics["exhibit/sled/quality"], metrics["exhibit/claims holds"]) == (15 / 24, 1.0)


def test_a_sweep_with_an_invalid_exhibit_runs_no_job(tmp_path):
    done = run(tmp_path, tmp_path, "synera,sled", EXHIBIT.replace("row: sled", "row: sleed"))
    assert done.returncode == BAD_INPUT
    assert done.stderr.startswith("error: exhibit.claims, 'both are equal': no job is the row 'sleed'.")
    assert not (tmp_path / "sweep").exists()


def check_runs(tracking: Tracking, parent: str, last: str) -> None:
    client, experiment_id = tracking.connect()
    jobs = client.search_runs([experiment_id], f"tags.`mlflow.parentRunId` = '{parent}'")
    assert sorted(job.info.status for job in jobs) == ["FAILED", "FINISHED", "FINISHED"]
    key = last.partition("/runs?workflowType=machine_learning&viewStateShareKey=")[2]
    tags = client.get_experiment(experiment_id).tags
    state = json.loads(json.loads(tags[f"mlflow.sharedViewState.{key}"])["state"])
    assert state["searchFilter"] == f"tags.`mlflow.parentRunId` = '{parent}'"
    assert sorted(job.info.run_id for job in client.search_runs([experiment_id], state["searchFilter"])) == sorted(
        job.info.run_id for job in jobs
    )
    assert state["selectedColumns"][:2] == ["params.`policy`", "metrics.`quality/mean`"]
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`quality/mean`", False)
    whole = client.get_run(parent)
    assert whole.info.status == "FAILED"
    assert whole.data.metrics == {"jobs": 4.0, "jobs_complete": 2.0}
    assert {item.path for item in client.list_artifacts(parent)} == {
        "comparison.csv", "comparison.md", "tradeoff.png", "overrides.txt", "preview"
    }  # fmt: skip
    note = whole.data.tags["mlflow.note.content"]
    assert "**2 of 4 jobs complete**" in note
    assert "| 1 | bad | failed: there is no such thing |" in note
    assert f"![preview/tradeoff.png](get-artifact?path=preview/tradeoff.png&run_uuid={parent})" in note


def test_a_failing_store_is_reported_once_and_not_tried_by_jobs(tmp_path):
    (tmp_path / "file").write_text("")
    broken = Tracking(uri=f"sqlite:///{tmp_path}/file/x.db")
    file = io.StringIO()
    sweep.start_sweep(tmp_path / "sweep", SweepNote(overrides=["policy=a,b"]), broken, file)
    assert "MLflow: could not log" in file.getvalue()
    job = JobContext(tmp_path, broken, {}, sweep=tmp_path / "sweep")
    assert (sweep.parent_run(job), sweep.is_tracked(job)) == (None, False)
    assert sweep.finish_sweep(tmp_path / "sweep", broken, file) == []
    assert file.getvalue().count("could not log") == 1


def test_a_single_job_has_no_parent_run(tmp_path):
    for job in (JobContext(tmp_path, Tracking(), {}), JobContext(tmp_path, Tracking(), {}, sweep=tmp_path)):
        assert (sweep.parent_run(job), sweep.is_tracked(job)) == (None, True)
