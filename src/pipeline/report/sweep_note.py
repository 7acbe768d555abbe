"""sweep.json: what a sweep is, for its jobs, which may run in other processes, and for a later command.

{run_id, overrides, command, folder, jobs: [[override]], ended}
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from pipeline.artifacts import fingerprint

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

    def write(self, folder: Path) -> None:
        fingerprint.write_atomic(folder / SWEEP_FILE, json.dumps(asdict(self), indent=1) + "\n")

    def mark_ended(self, folder: Path) -> None:
        replace(self, ended=True).write(folder)


def read_note(folder: Path) -> SweepNote | None:
    """The note of the sweep of this folder; None without one."""
    try:
        found = json.loads((folder / SWEEP_FILE).read_text(encoding="utf-8"))
        known = {field.name for field in fields(SweepNote)}
        return SweepNote(**{key: value for key, value in found.items() if key in known})
    except (OSError, ValueError, TypeError, AttributeError):
        return None
