"""Figures and MLflow of a job that built nothing, in a process of its own: the command ends without waiting for them.

The process, `python -m pipeline.report.deferred`, reads the job's context from standard input, so that no secret is
written to a file. If it fails, it leaves a note below `outputs`, which the next command prints.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TextIO

from pipeline.artifacts import fingerprint
from pipeline.report.context import JobContext, StageRun
from pipeline.report.job import JobReport, print_report, report_job
from pipeline.report.mlflow_store import Tracking

_NOTES = ".unlogged"
_KILLED = "Its process was killed, or could not begin."
_LONGEST_S = 3600.0
"""A process that is older is another one with the same number."""


def can_defer(context: JobContext) -> bool:
    """True if every stage of the job was cached, and the command may end before its figures are drawn."""
    return context.may_defer and bool(context.stages) and all(stage.cached for stage in context.stages)


def report_later(artifact: Path, context: JobContext, file: TextIO | None = None) -> JobReport:
    """Prints the job's report and writes its job.json; another process draws and logs. Raises RecordsError."""
    file = file or sys.stdout
    report = print_report(artifact, context, file)
    report.result.write(context.folder)
    start(artifact, context)
    print(f"\n{_hint(context)}", file=file, flush=True)
    return report


def _hint(context: JobContext) -> str:
    place = f"nothing was built: a process of its own draws {context.folder / 'figures'}"
    return f"{place} and logs to MLflow\n{context.tracking.ui_hint('')}" if context.tracking.enabled else place


def start(artifact: Path, context: JobContext) -> None:
    """Starts the process; it goes on when this one ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.report.deferred"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    write_failure(context, _KILLED, process.pid)  # before it can end, of whatever
    process.stdin.write(encode(artifact, context).encode())
    process.stdin.close()


def finish(text: str) -> None:
    """Draws and logs what `encode` wrote; a failure becomes a note, also that of a process that is killed."""
    artifact, context = decode(text)
    printed, note = io.StringIO(), write_failure(context, _KILLED, os.getpid())
    try:
        report = report_job(artifact, context, printed)
    except Exception as problem:  # whatever it is: this process has no terminal
        write_failure(context, f"{type(problem).__name__}: {problem}")
        raise
    lines = printed.getvalue().splitlines()
    said = [line for line in lines if line.startswith("figures: ")]
    if context.tracking.enabled and report.result.run_id is None:
        said += [line for line in lines if line.startswith("MLflow: ")][-1:] or ["MLflow did not say why."]
    if said:
        write_failure(context, "; ".join(said))
    else:
        note.unlink(missing_ok=True)


def encode(artifact: Path, context: JobContext) -> str:
    return json.dumps({"artifact": str(artifact), "context": asdict(context)}, default=str)


def decode(text: str) -> tuple[Path, JobContext]:
    """The artifact and the context of `encode`, which is not deferred again."""
    found = json.loads(text)
    given: dict[str, Any] = {field.name: found["context"][field.name] for field in fields(JobContext)}
    given |= {key: Path(given[key]) for key in ("folder", "sweep") if given[key] is not None}
    stages = tuple(StageRun(**{**stage, "path": Path(stage["path"])}) for stage in given["stages"])
    context = JobContext(**{**given, "tracking": Tracking(**given["tracking"]), "stages": stages})
    overrides, command = tuple(context.overrides), tuple(context.command)
    return Path(found["artifact"]), replace(context, overrides=overrides, command=command, may_defer=False)


def write_failure(context: JobContext, reason: str, pid: int = 0) -> Path:
    """Leaves a note for the next command, which says nothing of it while the process `pid` runs."""
    folder = Path(context.tracking.outputs).absolute() / _NOTES
    folder.mkdir(parents=True, exist_ok=True)
    note = {"folder": str(context.folder), "reason": reason, "pid": pid}
    path = folder / f"{context.folder.name}.json"
    fingerprint.write_atomic(path, json.dumps(note) + "\n")
    return path


def take_failures(outputs: Path) -> Iterator[str]:
    """What earlier commands' processes could not do; each is said once."""
    for path in sorted((outputs / _NOTES).glob("*.json")):
        with contextlib.suppress(OSError):  # another command has taken it, or the folder is read-only
            pid, said = _read_note(path)
            if pid and time.time() - path.stat().st_mtime < _LONGEST_S and _runs(pid):
                continue
            path.unlink()
            yield f"note: {said}"


def _read_note(path: Path) -> tuple[int, str]:
    """The process that a note is about, and what it says. Raises OSError."""
    text = path.read_bytes()
    try:
        note = json.loads(text)
        said = f"an earlier command's result in {note['folder']} was not drawn or logged. {note['reason']}"
        return int(note["pid"]), said
    except (ValueError, TypeError, LookupError):
        return 0, f"an earlier command left {path}, which cannot be read; its result may not be drawn or logged."


def _runs(pid: int) -> bool:
    """True if there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        return True
    return True


if __name__ == "__main__":
    finish(sys.stdin.read())
