"""The main job at toy size, killed in each of its stages, and run in four processes at once."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

STAGES = ("corpus", "cloud_model", "device_model", "thresholds", "serve")
TOY = ("model=toy", "workload=smoke", "trainer.threads=1", "tracking.uri=none")

pytestmark = pytest.mark.slow


def start(outputs: Path, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "pipeline", *(words or ["+policy=synera"]), *TOY, f"outputs={outputs}"]
    # A background job of a shell ignores Ctrl-C, and so would what it starts.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=heed)


def killed_in(stage: str, outputs: Path, how: signal.Signals) -> tuple[int, str]:
    """Kills the job when the stage says that it has started; its exit status, and what it said then."""
    with start(outputs) as process:
        for line in process.stderr or ():
            if line.startswith(f"{stage}: started"):
                os.kill(process.pid, how)
                break
        _, errors = process.communicate()
        return process.returncode, errors


def finished(outputs: Path) -> tuple[int, str]:
    with start(outputs) as process:
        _, errors = process.communicate()
        return process.returncode, errors


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_job_killed_in_every_stage_continues_from_that_stage(tmp_path: Path, how: signal.Signals) -> None:
    for i, stage in enumerate(STAGES):
        code, errors = killed_in(stage, tmp_path, how)
        assert code == (-signal.SIGKILL if how == signal.SIGKILL else 130), errors
        done = {path.name for path in (tmp_path / "artifacts").iterdir() if not path.name.startswith(".")}
        assert done - {"." + stage} <= set(STAGES[: i + 1])
    code, errors = finished(tmp_path)
    assert code == 0, errors
    assert [stage for stage in STAGES if f"{stage}: started" in errors] in ([], ["serve"])
    check = subprocess.run(
        [sys.executable, "-m", "pipeline", "cache", "check", f"outputs={tmp_path}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert check.stdout.endswith(" 0 damaged\n")


def test_four_processes_of_one_sweep_build_each_artifact_once(tmp_path: Path) -> None:
    sweep = ("-m", "policy=sled,synera", "report=full")
    processes = [start(tmp_path, *sweep) for _ in range(4)]
    told_by = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, told_by
    whole = "".join(told_by)
    for stage in STAGES[:-1]:
        assert whole.count(f"{stage}: done") == 1
    assert whole.count("serve: done") == 2
    assert "waiting for " in whole


def test_a_sweep_continues_after_a_failed_job_and_later_repeats_only_that_one(tmp_path: Path) -> None:
    sweep = ("-m", "policy=sled,edge_centric", "model.cloud.timed_architecture=llama2_70b,llama2_13b", "report=full")
    with start(tmp_path, *sweep) as process:
        table, errors = process.communicate()
    assert process.returncode == 1
    assert "does not fit" in errors
    assert "3 of 4 jobs complete" in table
    with start(tmp_path, *sweep) as process:
        _, errors = process.communicate()
    assert "done in" not in errors
