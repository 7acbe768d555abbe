"""A file in which the processes of a sweep note each build of an artifact, as it starts and as it is finished."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from pipeline.artifacts.runner import Runner
from pipeline.artifacts.stage import Stage
from pipeline.parallel.workers import LostTask, RayWorkers, WorkerCall


class Note(NamedTuple):
    """What a process noted about an artifact; a worker's `parent` is its host's process."""

    event: str
    key: str
    process: int
    parent: int


@dataclass(frozen=True)
class BuildLog:
    """The notes in a file that all hosts share."""

    file: Path

    def note(self, event: str, key: str) -> None:
        with self.file.open("a", encoding="utf-8") as lines:  # one short write, so that processes do not mix lines
            lines.write(f"{event} {key} {os.getpid()} {os.getppid()}\n")

    def notes(self) -> list[Note]:
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        return [Note(event, key, int(process), int(parent)) for event, key, process, parent in map(str.split, lines)]

    def counts(self, event: str) -> Mapping[str, int]:
        """How often each artifact was started, or finished."""
        return Counter(note.key for note in self.notes() if note.event == event)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Notes what this process builds."""
        build = Runner._build

        def noted_build(runner: Runner, stage: Stage, *rest: Any) -> None:
            self.note("started", stage.key)
            build(runner, stage, *rest)
            self.note("finished", stage.key)

        with patch.object(Runner, "_build", noted_build):
            yield


@dataclass(frozen=True)
class NotingRayWorkers(RayWorkers):
    """Workers of a Ray cluster that note their builds in `file`."""

    file: str = field(kw_only=True)

    def run(
        self, call: WorkerCall, tasks: Sequence[tuple[Any, ...]], job_nbytes: float
    ) -> Iterator[tuple[int, Any | LostTask]]:
        return super().run(_call_noting, [(self.file, call, *task) for task in tasks], job_nbytes)


def _call_noting(file: str, call: WorkerCall, *task: Any) -> Any:
    with BuildLog(Path(file)).noting():
        return call(*task)
