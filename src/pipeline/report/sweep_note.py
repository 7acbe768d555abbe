"""sweep.json: what a sweep is, for its jobs, which may run in other processes, and for a later command.

{run_id, overrides, command, folder, jobs: [[override]], ended, store}
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from pipeline.artifacts import fingerprint
from pipeline.report.mlflow_store import changes_result, split_masked

SWEEP_FILE = "sweep.json"


@dataclass(frozen=True)
class SweepNote:
    """`run_id` is the MLflow run that contains the jobs' runs: empty before there is one, None if logging is off or
    failed.
    """

    run_id: str | None = ""
    overrides: Sequence[str] = ()
    command: Sequence[str] = ()
    """The words of the command, secrets masked."""
    folder: str = "."
    """Where the command ran."""
    jobs: Sequence[Sequence[str]] = ()
    """The overrides of each job; empty for a search, which chooses them as it goes."""
    ended: bool = False
    """True once all jobs have run, whatever became of them."""
    store: str = ""
    """The address of the MLflow store that has the run, secrets masked."""

    def write(self, folder: Path) -> None:
        fingerprint.write_atomic(folder / SWEEP_FILE, json.dumps(asdict(self), indent=1) + "\n")

    def lists(self, number: int, overrides: Sequence[str]) -> bool:
        """True if these are the overrides of the job of this number, but for settings that change no result. An earlier
        command in the same folder may have left other jobs there. Also true of a search, which lists none, and of a
        job that was killed before it noted any.
        """
        if not self.jobs:
            return True
        if number >= len(self.jobs):
            return False
        return not overrides or _choices(self.jobs[number]) == _choices(overrides)

    def mark_ended(self, folder: Path) -> None:
        replace(self, ended=True).write(folder)


def _choices(overrides: Sequence[str]) -> dict[str, str]:
    return {key: value for key, value in map(split_masked, overrides) if changes_result(key)}


def read_note(folder: Path) -> SweepNote | None:
    """The note of the sweep of this folder; None without one that can be read."""
    try:
        found = json.loads((folder / SWEEP_FILE).read_text(encoding="utf-8"))
        known = {field.name for field in fields(SweepNote)}
        note = SweepNote(**{key: value for key, value in found.items() if key in known})
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return note if _is_whole(note) else None


def _is_whole(note: SweepNote) -> bool:
    """True if what a file said has the types that commands rely on."""
    texts = _are_texts(note.overrides) and _are_texts(note.command) and isinstance(note.folder, str)
    jobs = isinstance(note.jobs, list | tuple) and all(map(_are_texts, note.jobs))
    return texts and jobs and isinstance(note.run_id, str | None)


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
