"""Sweeps on worker processes: shared stages first and once, lost jobs again, complete jobs not; status and resume."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hydra.core.singleton import Singleton
from joblib.externals.loky import reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from pipeline.artifacts.stage import Stage
from pipeline.command.main import main
from pipeline.errors import ConfigError
from pipeline.parallel.cells import build_stage
from pipeline.parallel.launch import SweepLaunch
from pipeline.parallel.workers import JoblibWorkers, LostTask, SubmititWorkers, create_workers
from pipeline.report.job_result import read_result
from pipeline.report.mlflow_store import Tracking
from pipeline.report.sweep_note import read_note
from tests.support import stage_functions
from tests.support.inline_workers import InlineWorkers

_MEASURE = "tests.support.stage_functions.measure"
EXPERIMENT = {
    "defaults": [{"override /policy": "synera"}, "_self_"],
    "goal": "cheap",
    "which": 2,
    "stages": {
        "base": {"_target_": _MEASURE, "x": 0.5, "shape": ["${which}"], "deep": False},
        "cheap": {
            "_target_": "tests.support.stage_functions.measure_after", "_kind_": "profile", "x": 1.0,
            "base": "${stage:base}",
        },
    },
    "hydra": {"mode": "MULTIRUN", "sweep": {"dir": "${outputs}/cheap"}},
}  # fmt: skip
LAUNCHER = {
    "_target_": "hydra_plugins.tandem_launcher.launcher.ParallelLauncher", "_recursive_": False, "retries": 2,
    "across_hosts": False, "workers": {"_target_": "tests.support.inline_workers.InlineWorkers"},
}  # fmt: skip
Run = Callable[..., tuple[int, str, str]]
SWEPT = ("which=2,4", "stages.cheap.x=1.0,2.0", "tracking.uri=none")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs a command line in this process; its exit status and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hydra._internal.logging_config.configure_logging", lambda config: None)
    for group, name, node in (("experiment", "cheap", EXPERIMENT), ("hydra/launcher", "inline", LAUNCHER)):
        folder = tmp_path / "conf" / group
        folder.mkdir(parents=True)
        package = "# @package _global_\n" if group == "experiment" else ""
        (folder / f"{name}.yaml").write_text(package + yaml.safe_dump(node, sort_keys=False), encoding="utf-8")

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pipeline", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capfd.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    before = Singleton.get_state()
    yield call
    Singleton.set_state(before)  # this process was its own worker
    stage_functions.clear()
    InlineWorkers.lost.clear()
    InlineWorkers.calls.clear()


def sweep(run: Run, *words: str) -> tuple[int, str, str]:
    return run("--config-dir", "conf", "+experiment=cheap", "hydra/launcher=inline", *SWEPT, *words)


def test_what_several_jobs_need_is_built_first_and_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many run at once is said before any begins."""
    say, counts = SweepLaunch._say, "4 jobs; first 2 stages that several of them need; here, True"

    def say_and_note(self: SweepLaunch, text: str) -> None:
        say(self, text)
        InlineWorkers.calls.extend([("said", [text])] if text == counts else [])

    monkeypatch.setattr(SweepLaunch, "_say", say_and_note)
    code, out, err = sweep(run)
    assert code == 0, out + err
    assert InlineWorkers.calls == [
        ("said", [counts]),
        ("build_stage", ["base", "base"]),
        ("run_cells", [[number] for number in range(4)]),
    ]
    assert len(stage_functions.CALLS) == 2 + 4
    assert counts in out
    assert "4 of 4 jobs complete" in out


@pytest.mark.parametrize(("force", "built"), [pytest.param("base", 2 + 4, marks=pytest.mark.slow), ("cheap", 4)])
def test_a_forced_stage_that_several_jobs_need_is_built_again_once_before_them(
    run: Run, force: str, built: int
) -> None:
    """One job would replace it while another reads it."""
    assert sweep(run)[0] == 0
    before = len(stage_functions.CALLS)
    code, out, err = sweep(run, f"force=[{force}]")
    assert code == 0, out + err
    assert len(stage_functions.CALLS) - before == built
    assert "4 of 4 jobs complete" in out


def test_what_keeps_jobs_from_running_is_said_before_any_job_runs(run: Run) -> None:
    code, out, _ = sweep(run, "goal=cheap,absent")
    assert code == 1
    assert out.startswith("cannot run, while the others do: jobs 1, 3, 5, 7: asked for is 'absent'")
    assert "4 of 8 jobs complete" in out


def test_equal_jobs_are_two_jobs(run: Run) -> None:
    words = ("which=2", "stages.cheap.x=1.0,1.0", "tracking.uri=none")
    code, out, err = run("--config-dir", "conf", "+experiment=cheap", "hydra/launcher=inline", *words)
    assert code == 0, out + err
    assert "2 of 2 jobs complete" in out


def test_a_result_stays_where_its_job_cannot_run_now_and_a_plan_leaves_no_trace(run: Run, tmp_path: Path) -> None:
    words = ("--config-dir", "conf", "+experiment=cheap", "hydra/launcher=inline", "which=2", "stages.cheap.x=1.0,2.0",
             "tracking.uri=none")  # fmt: skip
    assert run(*words)[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.glob("outputs/cheap/*/job.json")}
    assert len(before) == 2
    notes = set(tmp_path.glob("outputs/cheap/*/*"))
    code, out, err = run(*words, "stage=plan")
    assert code == 0, out + err
    assert set(tmp_path.glob("outputs/cheap/*/*")) == notes
    code, out, _ = run(*words, "goal=absent")
    assert code == 1
    assert "cannot run: jobs 0, 1: asked for is 'absent'" in out
    assert out.count("the result of an earlier command stays") == 2
    assert {path: path.read_bytes() for path in before} == before


def test_a_result_of_another_configuration_is_replaced(run: Run) -> None:
    words = ("--config-dir", "conf", "+experiment=cheap", "hydra/launcher=inline", "tracking.uri=none")
    assert run(*words, "stages.cheap.x=1.0")[0] == 0
    before = len(stage_functions.CALLS)
    code, out, err = run(*words, "stages.cheap.x=3.0")
    assert code == 0, out + err
    assert len(stage_functions.CALLS) - before == 1
    assert "complete since an earlier command" not in out


def test_a_result_that_goes_on_has_the_files_as_they_are_and_else_its_date(run: Run, tmp_path: Path) -> None:
    words = ("--config-dir", "conf", "+experiment=cheap", "hydra/launcher=inline", "tracking.uri=none")
    assert run(*words)[0] == 0
    folder = tmp_path / "outputs" / "cheap" / "0"
    found = read_result(folder)
    assert found is not None
    assert found.files
    os.utime(folder / "job.json", (0, 0))
    assert run(*words)[0] == 0
    assert (folder / "job.json").stat().st_mtime == 0
    replace(found, files={"config": "as it was"}).write(folder)
    assert "complete since an earlier command" in run(*words)[1]
    assert read_result(folder) == found


def test_a_job_whose_worker_died_runs_again_and_complete_ones_of_its_batch_do_not(run: Run) -> None:
    InlineWorkers.lost += [("run_cells", 2), ("build_stage", "base")]
    code, out, err = sweep(run, "+hydra.launcher.workers.half_done=true", "+hydra.launcher.workers.batch=2")
    assert code == 0, out + err
    assert [call for call in InlineWorkers.calls if call[0] == "build_stage"][1] == ("build_stage", ["base"])
    assert InlineWorkers.calls[-2:] == [("run_cells", [[0, 1], [2, 3]]), ("run_cells", [[2, 3]])]
    assert len(stage_functions.CALLS) == 2 + 4, "a stage or a job was built twice"
    assert "1 tasks lost their worker and start again" in out


def test_a_job_that_is_lost_again_and_again_fails_alone(run: Run) -> None:
    InlineWorkers.lost += 3 * [("run_cells", 3)]
    code, out, _ = sweep(run)
    assert code == 1
    assert "error: job 3 was lost at least 3 times: its host died" in out
    assert "3 of 4 jobs complete" in out


def test_a_job_that_was_complete_before_its_worker_was_lost_is_complete(run: Run) -> None:
    InlineWorkers.lost.append(("run_cells", 0))
    words = ("stages.cheap.x=1.0", "+hydra.launcher.workers.half_done=true", "hydra.launcher.retries=0")
    code, out, err = run(
        "--config-dir", "conf", "+experiment=cheap", "hydra/launcher=inline", "tracking.uri=none", *words
    )
    assert code == 0, out + err
    assert "1 of 1 jobs complete" in out


def test_jobs_that_need_a_stage_that_failed_do_not_run(run: Run) -> None:
    stage_functions.REFUSED.append((2,))
    code, out, err = sweep(run)
    assert code == 1
    assert "2 of 4 jobs complete" in out
    assert out.count("failed: stage base, which several jobs need: ") == 2
    assert stage_functions.CALLS.count((0.5, (2,))) == 1, err


def test_sealed_prompts_that_a_stage_of_several_jobs_reads_are_counted(tmp_path: Path) -> None:
    dataset = {"_target_": "serving.workload.datasets.gsm8k.GSM8K", "evaluation": "sealed"}
    stage = Stage("asked", "tests.support.stage_functions.read_questions", {"dataset": dataset})
    launch: Any = SimpleNamespace(restore=lambda: None)
    assert build_stage(launch, tmp_path / "artifacts", False, stage) == ""
    assert (tmp_path / "sealed_uses.txt").read_text() == f"gsm8k {stage.digest[:16]}\n"


def test_a_fault_in_a_stage_fails_the_jobs_that_need_it_and_no_others(run: Run) -> None:
    stage_functions.FAULTY.append((2,))
    code, out, err = sweep(run)
    assert code == 1
    assert "2 of 4 jobs complete" in out
    said = (
        r"error: stage base, which several jobs need: base: tests.support.stage_functions.measure "
        r"\(\S+stage_functions.py line \d+\): RuntimeError: out of memory. TANDEM_DEBUG=1 shows the traceback"
    )
    assert len(re.findall(said, err)) == 2
    assert out.count("failed: stage base, which several jobs need: base: tests.support.") == 2
    assert "Traceback" not in err


def test_a_fault_of_the_project_in_a_stage_of_several_jobs_is_printed_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here of a function that is given a folder without draws."""
    (tmp_path / "no_draw.txt").write_text("1")
    drawn = {"drawn": {"_content_": "0", "path": str(tmp_path)}}
    stage = Stage("asked", "pipeline.report.results.draws.summarise_draws", drawn)
    launch: Any = SimpleNamespace(restore=lambda: None)
    assert build_stage(launch, tmp_path / "artifacts", False, stage).startswith("TypeError: ")
    assert "Traceback" in capsys.readouterr().err


def test_the_traceback_of_a_users_stage_is_printed_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEM_DEBUG", "1")
    monkeypatch.setattr(stage_functions, "FAULTY", [(2,)])
    monkeypatch.setattr(stage_functions, "CALLS", [])  # other tests count from none
    stage = Stage("asked", "tests.support.stage_functions.measure", {"x": 1.0, "shape": [2]})
    launch: Any = SimpleNamespace(restore=lambda: None)
    assert "out of memory" in build_stage(launch, tmp_path / "artifacts", False, stage)
    assert "Traceback" in capsys.readouterr().err


def test_resume_goes_on_in_the_same_mlflow_run_and_the_same_command_has_its_own(run: Run, tracking: Tracking) -> None:
    stage_functions.KILLED_AT.append(2)
    outputs = Path(tracking.outputs)
    words = ("--config-dir", "conf", "+experiment=cheap", "hydra/launcher=inline", "which=2", "stages.cheap.x=1.0,2.0",
             f"outputs={outputs}", "tracking.uri=null")  # fmt: skip
    code, out, _ = run(*words)
    assert code == 130, out
    parent = read_note(outputs / "cheap")
    assert parent is not None
    code, out, _ = run("sweep", "status", str(outputs / "cheap"))
    assert "2 jobs: 1 begun, 1 complete; its last command was stopped" in out
    calls = len(stage_functions.CALLS)
    code, out, err = run("sweep", "resume", str(outputs / "cheap"), "report=quiet")
    assert code == 0, out + err
    assert out.count("complete since an earlier command") == 1
    assert len(stage_functions.CALLS) - calls == 1
    client, experiment = tracking.connect()
    (only,) = client.search_runs([experiment], "tags.`tandem.kind` = 'sweep'")
    assert (only.info.run_id, only.info.status) == (parent.run_id, "FINISHED")
    assert len(client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{only.info.run_id}'")) == 2
    code, out, _ = run("sweep", "status", str(outputs / "cheap"))
    assert "2 jobs: 2 complete; its last command ended" in out
    assert run(*words)[0] == 0
    assert len(client.search_runs([experiment], "tags.`tandem.kind` = 'sweep'")) == 2, "no run of its own"


@pytest.mark.parametrize("batch", [1, 2])
def test_no_job_begins_after_one_that_was_interrupted(run: Run, batch: int) -> None:
    stage_functions.KILLED_AT.append(1)
    words = ("which=2", "stages.cheap.x=1.0,2.0,3.0", "tracking.uri=none", f"+hydra.launcher.workers.batch={batch}")
    code, out, _ = run("--config-dir", "conf", "+experiment=cheap", "hydra/launcher=inline", *words)
    assert code == 130, out
    assert len(stage_functions.CALLS) == 2, "the shared stage, and the job that was interrupted"


def test_a_sweep_that_goes_on_with_fewer_jobs_counts_these_alone(run: Run, tmp_path: Path) -> None:
    assert sweep(run)[0] == 0
    folder = tmp_path / "outputs" / "cheap"
    code, out, err = run("sweep", "resume", str(folder), "stages.cheap.x=1.0")
    assert code == 0, out + err
    assert "2 of 2 jobs complete" in out
    assert out.count("complete since an earlier command") == 1
    assert "2 jobs: 2 complete; its last command ended" in run("sweep", "status", str(folder))[1]


def test_a_sweep_in_one_process_leaves_out_what_an_earlier_command_completed(run: Run, tmp_path: Path) -> None:
    words = ("which=2", "stages.cheap.x=1.0,2.0", "tracking.uri=none")
    assert run("--config-dir", "conf", "+experiment=cheap", *words)[0] == 0
    folder = tmp_path / "outputs" / "cheap"
    (folder / "1" / "job.json").unlink()
    before = (folder / "0" / "job.json").read_bytes()
    code, out, err = run("sweep", "resume", str(folder))
    assert code == 0, out + err
    assert out.count("complete since an earlier command") == 1
    assert out.count("nothing to build: all 2 stages are there") == 1, "job 1 alone is reported again"
    assert "2 of 2 jobs complete" in out
    assert (folder / "0" / "job.json").read_bytes() == before


def test_jobs_on_several_hosts_need_a_tracking_server(run: Run) -> None:
    code, _, err = sweep(run, "hydra.launcher.across_hosts=true", "tracking.uri=null")
    assert code == 2
    assert "the jobs of this sweep run on several hosts, and the MLflow store is a file" in err
    assert not stage_functions.CALLS


def test_a_sweep_folder_without_its_note_and_a_masked_secret_are_refused(run: Run, tmp_path: Path) -> None:
    code, _, err = run("sweep", "status", str(tmp_path))
    assert (code, "there is no readable sweep.json in" in err) == (2, True)
    (tmp_path / "sweep.json").write_text(json.dumps({"command": ["-m", "tracking.token=***"]}))
    code, _, err = run("sweep", "resume", str(tmp_path))
    assert (code, "the value of tracking.token=*** is a secret and was not written" in err) == (2, True)
    code, _, err = run("sweep", "stop", str(tmp_path))
    assert (code, "python -m pipeline sweep status FOLDER" in err) == (2, True)


def test_as_many_processes_as_cores_unless_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.parallel.workers.usable_cores", lambda: 8)
    monkeypatch.setattr("pipeline.parallel.workers.free_nbytes", lambda: 10e9)
    workers = JoblibWorkers()
    assert [workers.count(nbytes) for nbytes in (0.0, 2e9, 4e9, 50e9)] == [8, 5, 2, 1]
    assert workers.describe(2e9) == "5 at once (8 cores; 10.0 GB free, up to 2.0 GB for each)"
    assert [JoblibWorkers(n).count(50e9) for n in (3, -1)] == [3, 8]


def test_processes_that_were_prepared_run_the_tasks() -> None:
    """They have what they imported; a task of another process would import it again."""
    workers = JoblibWorkers(2)
    assert len(list(workers.prepare(os.getpid, ()))) == 2
    prepared = set(reusable_executor._executor._processes)
    assert {process for _, process in workers.run(os.getpid, 4 * [()], 0.0)} <= prepared
    assert len(prepared - {os.getpid()}) == 2


def test_processes_that_die_before_they_have_a_task_are_replaced() -> None:
    workers = JoblibWorkers(2)
    assert list(workers.prepare(os._exit, (1,))) == []
    assert [index for index, _ in workers.run(os.getpid, [()], 0.0)] == [0]


class Pools:
    """Stands for joblib's pools: of two tasks that run at once, 0 kills both before they end. The first `idle` pools
    break before they have taken a task. `taken` has the tasks of each pool.
    """

    def __init__(self, idle: int = 0) -> None:
        self.idle = idle
        self.taken: list[list[int]] = []

    def start(self, count: int, call: Any, numbered: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        self.taken.append([])
        if len(self.taken) <= self.idle:
            raise TerminatedWorkerError("while it had no task")
        tasks = iter(numbered)
        while running := list(islice(tasks, count)):
            self.taken[-1] += [index for index, _ in running]
            if any(task == (0,) for _, task in running):
                raise TerminatedWorkerError("killed")
            yield from ((index, call(*task)) for index, task in running)


def run_in(pools: Pools, monkeypatch: pytest.MonkeyPatch, *numbers: int) -> dict[int, Any]:
    """What becomes of tasks with these numbers, two at once: the number, or "lost"."""
    monkeypatch.setattr(JoblibWorkers, "_start", lambda self, *arguments: pools.start(*arguments))
    ended = JoblibWorkers(2).run(abs, [(number,) for number in numbers], 0.0)
    return {numbers[index]: "lost" if isinstance(one, LostTask) else one for index, one in ended}


def test_of_tasks_that_run_beside_one_that_kills_its_process_that_one_alone_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools = Pools()
    assert run_in(pools, monkeypatch, 4, 5, 0, 1, 2, 3) == {0: "lost", **{number: number for number in range(1, 6)}}
    assert pools.taken == [[0, 1, 2, 3], [4, 5], [2], [3]]


@pytest.mark.parametrize(("idle", "end"), [(1, 7), (2, "lost")])
def test_a_pool_that_breaks_before_it_has_a_task_is_started_again_once(
    monkeypatch: pytest.MonkeyPatch, idle: int, end: object
) -> None:
    assert run_in(Pools(idle), monkeypatch, 7) == {7: end}


def test_options_out_of_range_are_refused() -> None:
    for node, text in (
        ({"_target_": "pipeline.parallel.workers.JoblibWorkers", "n_jobs": 0}, "n_jobs is 0"),
        ({"_target_": "pipeline.parallel.workers.JoblibWorkers", "n_jobs": -2}, "n_jobs is -2"),
        ({"_target_": "pipeline.parallel.workers.JoblibWorkers", "jobs": 2}, "has no option 'jobs'"),
        ({"_target_": "pipeline.parallel.workers.SubmititWorkers", "folder": "x", "max_workers": 0}, "max_workers"),
        ({"_target_": "pipeline.parallel.workers.RayWorkers", "max_workers": -1}, "max_workers is -1"),
        ({"_target_": "pipeline.parallel.workers.RayWorkers", "cpus": 0}, "cpus is 0"),
    ):
        with pytest.raises(ConfigError, match=text):
            create_workers(node)


@pytest.mark.parametrize(("given", "shown"), [("-1", "-1"), ("null", "None"), ("true", "True"), ("1.5", "1.5")])
def test_retries_that_are_no_number_of_times_are_refused_before_any_job(run: Run, given: str, shown: str) -> None:
    code, out, err = sweep(run, f"hydra.launcher.retries={given}")
    assert (code, stage_functions.CALLS) == (2, []), out
    assert f"hydra.launcher.retries is {shown}; give a number of times, 0 or more." in err


def test_a_job_that_is_lost_is_not_started_again_with_no_retries(run: Run) -> None:
    InlineWorkers.lost.append(("run_cells", 3))
    code, out, _ = sweep(run, "hydra.launcher.retries=0")
    assert code == 1
    assert "error: job 3 was lost at least 1 times: its host died" in out


def test_tasks_of_a_cluster_run_several_jobs_each() -> None:
    assert [SubmititWorkers("x", 10).batch_size(jobs) for jobs in (3, 30, 300)] == [1, 1, 10]
