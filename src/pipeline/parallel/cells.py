"""What a worker process does: it builds a stage that several jobs need, or runs jobs of the sweep."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pipeline.artifacts.progress_display import LineDisplay
from pipeline.artifacts.runner import Runner
from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import Store
from pipeline.config.collector import resume_collector
from pipeline.config.compose import written_overrides
from pipeline.errors import INTERRUPTED, UserError, survived_problem
from pipeline.report import job_result, sealed_uses
from pipeline.report.job_result import JobResult
from pipeline.report.mlflow_store import mask_override

if TYPE_CHECKING:
    from omegaconf import DictConfig

_INHERITED = ("TANDEM_PROCESS", "TANDEM_DATA")
"""Variables that a worker on another host needs. Others may be secrets, and submitit writes tasks to files."""
_USED_BY_JOBS = ("pipeline.running", "pipeline.report.job", "pipeline.report.figures", "serving.stages", "numpy")
_USED_BY_TRACKED_JOBS = ("mlflow.tracking",)
"""It takes longer to import than all others."""


@dataclass(frozen=True)
class Launch:
    """What a worker process takes over from the process that launched it."""

    hydra_context: Any
    singletons: Mapping[Any, Any]
    folder: str
    environment: Mapping[str, str]

    def restore(self) -> None:
        from hydra.core.singleton import Singleton
        from hydra.core.utils import setup_globals

        from pipeline.report.hydra_notes import mask_hydras_notes

        os.chdir(self.folder)
        os.environ.update(self.environment)
        setup_globals()
        mask_hydras_notes()
        Singleton.set_state(dict(self.singletons))  # with the resolvers of prepare_hydra


def current_launch(hydra_context: Any) -> Launch:
    """Of this process."""
    from hydra.core.singleton import Singleton

    known = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return Launch(hydra_context, Singleton.get_state(), os.getcwd(), known)


@dataclass(frozen=True)
class Cell:
    """One job of a sweep: its composed configuration; `blocked` says why it cannot run, if it cannot."""

    number: int
    config: "DictConfig"
    blocked: str = ""


@dataclass(frozen=True)
class CellEnd:
    """The exit status of a job, and what it printed."""

    number: int
    status: int
    printed: str


def forcing(cell: Cell, names: Sequence[str]) -> Cell:
    """The job with these stages to build again, and no others."""
    from omegaconf import read_write

    config = cell.config.copy()
    with read_write(config):
        config.force = list(names)
    return replace(cell, config=config)


@contextlib.contextmanager
def composed_as(config: "DictConfig") -> Iterator[None]:
    """Makes `config` the one that Hydra's resolvers read."""
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.instance()
    before, hydra.cfg = hydra.cfg, None
    hydra.set_config(config)
    try:
        yield
    finally:
        hydra.cfg = before


def job_folder(config: "DictConfig") -> Path:
    """The folder of a job of a sweep."""
    with composed_as(config):
        return Path(str(config.hydra.sweep.dir)).absolute() / str(config.hydra.sweep.subdir)


def is_complete(cell: Cell) -> bool:
    """True if the job left a complete result; what stops before its goal leaves none."""
    found = job_result.read_result(job_folder(cell.config))
    return cell.config.stage == "all" and found is not None and found.status == "complete"


def failed_result(cell: Cell, reason: str) -> JobResult:
    """What job.json says of a job whose worker process died."""
    return JobResult("failed", cell.number, str(cell.config.policy.name), masked_overrides(cell), error=reason)


def masked_overrides(cell: Cell) -> tuple[str, ...]:
    """The overrides of the job as its result has them."""
    return tuple(map(mask_override, written_overrides(cell.config.hydra)))


def import_modules(launch: Launch, tracked: bool) -> None:
    """Imports what nearly every job uses; `tracked`: also what logs to MLflow. The garbage collector does not look
    through what is there then, as in a process that runs a job alone.
    """
    launch.restore()
    for name in (*_USED_BY_JOBS, *(_USED_BY_TRACKED_JOBS if tracked else ())):
        import_module(name)
    resume_collector()


def run_cells(launch: Launch, cells: Sequence[Cell]) -> list[CellEnd]:
    """Runs the jobs one after the other, as Hydra's own launchers do, but those that a lost worker completed; none
    after one that was interrupted.
    """
    launch.restore()
    ends: list[CellEnd] = []
    for cell in cells:
        ends.append(CellEnd(cell.number, 0, "") if is_complete(cell) else _run_cell(launch, cell))
        if ends[-1].status == INTERRUPTED:
            break
    return ends


def _run_cell(launch: Launch, cell: Cell) -> CellEnd:
    from hydra.core.utils import run_job

    from pipeline.running import report_blocked, run_to_exit_status

    printed = io.StringIO()
    run = partial(report_blocked, problem=UserError(cell.blocked)) if cell.blocked else run_to_exit_status
    with contextlib.redirect_stdout(printed), _prefixed_stderr(f"job {cell.number}: "):
        ended = run_job(
            task_function=run,
            config=cell.config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
            hydra_context=launch.hydra_context,
        )
    return CellEnd(cell.number, int(ended.return_value), printed.getvalue())


def build_stage(launch: Launch, root: Path, force: bool, stage: Stage) -> str:
    """Builds a stage, with `force` again; returns why it could not be built, or an empty text if it was. A fault of the
    project counts as a mistake does: the jobs that do not need the stage run in any case.
    """
    from pipeline.running import call_stage

    launch.restore()
    forced = frozenset([stage.name] if force else ())
    with contextlib.redirect_stdout(io.StringIO()), _prefixed_stderr(f"{stage.key}: "):
        runner = Runner(Store(root), call_stage, LineDisplay(sys.stderr), forced, sealed_uses.note_build)
        try:
            runner.ensure_built(stage)
        except Exception as problem:
            return survived_problem(problem)
    return ""


@contextlib.contextmanager
def _prefixed_stderr(prefix: str) -> Iterator[None]:
    """Begins each line of standard error with the job or stage that printed it: processes share a terminal."""
    lines = _PrefixedLines(sys.stderr, prefix)
    try:
        with contextlib.redirect_stderr(lines):
            yield
    finally:
        lines.end()


class _PrefixedLines(io.TextIOBase):
    def __init__(self, file: TextIO, prefix: str) -> None:
        self._file, self._prefix, self._partial = file, prefix, ""

    def write(self, text: str) -> int:
        *lines, self._partial = (self._partial + text).split("\n")
        if lines:
            self._file.write("".join(f"{self._prefix}{line}\n" for line in lines))
        return len(text)

    def end(self) -> None:
        """Ends a line that was not ended."""
        if self._partial:
            self.write("\n")

    def flush(self) -> None:
        self._file.flush()
