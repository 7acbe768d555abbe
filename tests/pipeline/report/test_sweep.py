"""Multiruns in a process of their own: the jobs meet in files, one table ends each."""

import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pipeline.errors import BAD_INPUT, INTERNAL_ERROR, UserError
from pipeline.report import sweep
from pipeline.report.context import JobContext
from pipeline.report.job_result import JobResult
from pipeline.report.mlflow_store import Tracking
from pipeline.report.sweep_note import SweepNote
from tests.pipeline.report.serve_artifact import drawn

SWEEP_PROGRAM = Path(__file__).parents[2] / "programs" / "run_sweep.py"
EXHIBIT = (
    "+exhibit={title: Table 4, columns: [{name: quality}], rows: {label: '{policy}'}, reported: {sled: {quality: 0.5}},"
    "figure: {x: '{row}', y: quality}, claims: [{statement: both are equal, row: sled, "
    "baseline: synera, metric: quality, relation: equal, margin: 0.1}]}"
)
SWEEPS = {
    "some failed": ("policy=synera,bad,killed,sled",),
    "exhibit": ("policy=synera,sled", EXHIBIT),
    "invalid exhibit": ("policy=synera,sled", EXHIBIT.replace("row: sled", "row: sleed")),
    "interrupted": ("policy=synera,interrupted,sled",),
}


@dataclass(frozen=True)
class Done:
    """A sweep that has ended, and what it printed."""

    folder: Path
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def run_id(self) -> str:
        return str(json.loads((self.folder / "sweep" / "sweep.json").read_text())["run_id"])

    @property
    def tracking(self) -> Tracking:
        return Tracking(outputs=str(self.folder))


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory, fresh: tuple[Path, list[tuple[str, str]]]) -> dict[str, Done]:
    """All of `SWEEPS`, in one process."""
    base = tmp_path_factory.mktemp("sweeps")
    folders, commands = [base / name for name in SWEEPS], []
    for folder, words in zip(folders, SWEEPS.values(), strict=True):
        folder.mkdir()
        shutil.copy(fresh[0], folder / "mlflow.db")
        commands.append((str(drawn(folder / "serve")), ["-m", *words, f"outputs='{folder}'"]))
    (base / "commands.json").write_text(json.dumps(commands))
    command = [sys.executable, str(SWEEP_PROGRAM), str(base / "commands.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    out, err = (re.split(r"^ended (\d+)\n", text, flags=re.MULTILINE) for text in (done.stdout, done.stderr))
    codes = map(int, out[1::2])
    return dict(zip(SWEEPS, map(Done, folders, codes, out[::2], err[::2]), strict=True))


def test_a_sweep_compares_its_jobs_and_survives_a_failed_one(sweeps):
    done = sweeps["some failed"]
    assert done.code == sweep.JOB_FAILED, done.err
    assert done.err == ""
    assert "2 of 4 jobs complete" in done.lines
    assert any(line.startswith("1    bad     failed: there is no such thing") for line in done.lines)
    assert any(line.startswith("2    killed  no result: killed, interrupted") for line in done.lines)
    assert done.lines[-1].startswith("MLflow: ")
    assert (done.folder / "sweep" / "comparison.csv").exists()
    check_runs(done.tracking, done.run_id, done.lines[-1])


def test_an_interrupted_sweep_compares_what_is_there_and_ends_its_run(sweeps):
    done = sweeps["interrupted"]
    assert "1 of 3 jobs complete" in done.lines
    assert done.lines[-1] == "interrupted: 1 of 3 jobs are complete. The same command goes on: what was built is kept."
    client, _ = done.tracking.connect()
    assert client.get_run(done.run_id).info.status == "KILLED"


def test_a_search_that_goes_on_after_ctrl_c_logs_the_best_trial_of_its_end(tmp_path, tracking):
    note = SweepNote(overrides=["policy=synera"], folder=str(tmp_path))
    for trials, interrupted in ((2, True), (4, False)):
        sweep.start_sweep(tmp_path, note, tracking, io.StringIO(), goes_on=True)
        for number in range(trials):
            result = JobResult("complete", number, "synera", ("policy=synera",), metrics={"quality/mean": 0.1 * number})
            result.write(tmp_path / str(number))
        shown = [{"number": number, "label": "", "state": "complete", "values": [0.1 * number], "params": {"k": number}}
                 for number in range(trials)]  # fmt: skip
        found = {"metrics": ["quality/mean"], "directions": ["maximize"], "best": [trials - 1], "trials": shown}
        (tmp_path / "search.json").write_text(json.dumps(found))
        printed = io.StringIO()
        sweep.finish_sweep(tmp_path, tracking, printed, interrupted=interrupted)
        assert "could not log" not in printed.getvalue()
    client, _ = tracking.connect()
    run = client.get_run(sweep.read_note(tmp_path).run_id)
    assert (run.info.status, run.data.params["search.k"]) == ("FINISHED", "3")


def test_a_sweep_that_goes_on_in_another_store_has_a_run_there(tmp_path, tracking):
    note = SweepNote(overrides=["policy=sled"], folder=str(tmp_path), jobs=[["policy=sled"]])
    sweep.start_sweep(tmp_path, note, tracking, io.StringIO(), goes_on=True)
    first = sweep.read_note(tmp_path).run_id
    sweep.start_sweep(tmp_path, note, tracking, io.StringIO(), goes_on=True)
    assert sweep.read_note(tmp_path).run_id == first
    sweep.start_sweep(tmp_path, note, replace(tracking, uri="none"), io.StringIO(), goes_on=True)
    assert sweep.read_note(tmp_path).run_id is None


def test_a_sweep_whose_jobs_left_nothing_fails(tmp_path, capsys):
    callback = sweep.SweepCallback(Tracking(uri="none", outputs=str(tmp_path)), io.StringIO())
    callback.folder = tmp_path
    with pytest.raises(SystemExit, match=str(sweep.JOB_FAILED)):
        callback.on_multirun_end(OmegaConf.create({"stage": "all"}))
    assert f"no job of this sweep left anything in {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("problem", "code"), [(UserError("no room on the disk"), BAD_INPUT), (ValueError("a fault"), INTERNAL_ERROR)]
)
def test_a_sweep_whose_report_fails_says_why_and_fails(tmp_path, monkeypatch, capsys, problem, code):
    def fail(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr(sweep, "finish_sweep", fail)
    callback = sweep.SweepCallback(Tracking(uri="none", outputs=str(tmp_path)), io.StringIO())
    with pytest.raises(SystemExit, match=str(code)):
        callback.on_multirun_end(OmegaConf.create({"stage": "all"}))
    assert str(problem) in capsys.readouterr().err


def test_a_sweep_logs_its_exhibit_in_its_own_run(sweeps):
    done = sweeps["exhibit"]
    assert done.code == 0, done.err
    assert done.err == ""
    assert "holds  both are equal: quality +0 [+0, +0]" in done.out
    client, _ = done.tracking.connect()
    assert {f"exhibit.{kind}" for kind in ("txt", "json", "csv", "png")} <= {
        item.path for item in client.list_artifacts(done.run_id)
    }
    metrics = client.get_run(done.run_id).data.metrics
    assert (metrics["exhibit/sled/quality"], metrics["exhibit/claims holds"]) == (15 / 24, 1.0)


def test_a_sweep_with_an_invalid_exhibit_runs_no_job(sweeps):
    done = sweeps["invalid exhibit"]
    assert done.code == BAD_INPUT
    assert done.err.startswith("error: exhibit.claims, 'both are equal': no job is the row 'sleed'.")
    assert not (done.folder / "sweep").exists()


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
        "comparison.csv", "comparison.md", "tradeoff.png", "overrides.txt", "command.txt", "preview"
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
