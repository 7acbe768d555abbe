"""Reports that a process of its own finishes, where nothing was built; its failures are said by the next command."""

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.report import deferred, figures
from pipeline.report.job_result import read_result
from pipeline.report.mlflow_store import Tracking
from tests.pipeline.report.serve_artifact import drawn
from tests.pipeline.report.test_job import SECRET, context, trained


def deferrable(tmp_path: Path, tracking: Tracking, **changes: Any) -> Any:
    return context(tmp_path, tracking, stages=(trained(tmp_path / "device_model"),), may_defer=True, **changes)


def test_a_context_survives_the_way_to_the_other_process(tmp_path: Path) -> None:
    job = deferrable(tmp_path, Tracking(uri="none"), command=("+policy=synera",))
    artifact, found = deferred.decode(deferred.encode(tmp_path / "serve", job))
    assert artifact == tmp_path / "serve"
    assert found == replace(job, may_defer=False)


def test_only_jobs_that_built_nothing_are_deferred(tmp_path: Path) -> None:
    job = deferrable(tmp_path, Tracking(uri="none"))
    assert deferred.can_defer(job)
    built = replace(job.stages[0], cached=False)
    for other in (replace(job, stages=(*job.stages, built)), replace(job, may_defer=False), replace(job, stages=())):
        assert not deferred.can_defer(other)


def test_the_other_process_draws_and_logs_what_the_command_left(
    tmp_path: Path, tracking: Tracking, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(deferred, "start", lambda *given: sent.append(deferred.encode(*given)))
    file = io.StringIO()
    job = deferrable(tmp_path, tracking)
    deferred.report_later(drawn(tmp_path / "serve", n=12), job, file)
    before = read_result(job.folder)
    assert before is not None
    assert (before.status, before.run_id) == ("complete", None)
    assert not (job.folder / "figures").exists()
    assert "nothing was built: a process of its own draws" in file.getvalue()
    deferred.finish(sent[0])
    after = read_result(job.folder)
    assert after is not None
    assert after.run_id is not None
    assert replace(after, run_id=None) == before
    assert (job.folder / "figures" / "latency.png").exists()
    client, _ = tracking.connect()
    run = client.get_run(after.run_id)
    assert (run.info.status, run.info.start_time) == ("FINISHED", int(1000 * job.started_s))
    assert SECRET not in str(run.data.params)
    assert list(deferred.take_failures(tmp_path)) == []


def test_figures_that_the_other_process_cannot_draw_are_said_by_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no font")

    monkeypatch.setattr(figures, "draw_latency", fail)
    job = deferrable(tmp_path, Tracking(uri="none", outputs=str(tmp_path)))
    deferred.finish(deferred.encode(drawn(tmp_path / "serve", n=12), job))
    (said,) = deferred.take_failures(tmp_path)
    assert said.endswith("was not drawn or logged. figures: could not draw them (ValueError: no font)")


def test_a_failure_is_said_once_by_the_next_command(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken = Tracking(uri=f"sqlite:///{tmp_path}/file/x.db", outputs=str(tmp_path))
    deferred.finish(deferred.encode(drawn(tmp_path / "serve", n=12), deferrable(tmp_path, broken)))
    (said,) = deferred.take_failures(tmp_path)
    assert said.startswith(f"note: an earlier command's result in {tmp_path / 'job'} was not drawn or logged. MLflow: ")
    assert list(deferred.take_failures(tmp_path)) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"folder": "x", "reason": "of older code"}', "\xff"])
def test_a_note_that_cannot_be_read_is_said_once(tmp_path: Path, text: str) -> None:
    job = deferrable(tmp_path, Tracking(uri="none", outputs=str(tmp_path)))
    path = deferred.write_failure(job, "")
    path.write_text(text, encoding="latin-1")
    assert list(deferred.take_failures(tmp_path)) == [
        f"note: an earlier command left {path}, which cannot be read; its result may not be drawn or logged."
    ]
    assert list(deferred.take_failures(tmp_path)) == []


def test_any_other_failure_is_said_too(tmp_path: Path) -> None:
    text = deferred.encode(tmp_path / "nothing", deferrable(tmp_path, Tracking(uri="none", outputs=str(tmp_path))))
    with pytest.raises(Exception, match="nothing"):
        deferred.finish(text)
    (said,) = deferred.take_failures(tmp_path)
    assert "RecordsError" in said


def test_a_process_that_is_killed_has_left_a_note_which_is_not_said_while_it_runs(tmp_path: Path) -> None:
    job = deferrable(tmp_path, Tracking(uri="none", outputs=str(tmp_path)))
    deferred.write_failure(job, "Its process was killed.", os.getpid())
    assert list(deferred.take_failures(tmp_path)) == []
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    deferred.write_failure(job, "Its process was killed.", gone.pid)
    (said,) = deferred.take_failures(tmp_path)
    assert said.endswith("was not drawn or logged. Its process was killed.")


def test_a_process_that_cannot_begin_and_a_number_that_is_used_again_are_said_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = deferrable(tmp_path, Tracking(uri="none", outputs=str(tmp_path)))
    broken: list[subprocess.Popen[bytes]] = []

    def fail_at_once(_command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        broken.append(
            popen([sys.executable, "-c", "import sys; sys.stdin.read(); import nothing_of_this_name"], **options)
        )
        return broken[-1]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", fail_at_once)
    deferred.start(tmp_path / "serve", job)
    broken[0].wait(60)
    (said,) = deferred.take_failures(tmp_path)
    assert said.endswith("Its process was killed, or could not begin.")
    note = deferred.write_failure(job, "Its process was killed.", os.getpid())
    assert list(deferred.take_failures(tmp_path)) == []
    os.utime(note, (0, 0))
    assert len(list(deferred.take_failures(tmp_path))) == 1
