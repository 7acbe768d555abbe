"""A Hydra callback around the jobs of a multirun: an MLflow run that contains theirs, and a table at the end.

    hydra.callbacks.sweep: {_target_: pipeline.report.sweep.SweepCallback, tracking: ${tracking}}

The jobs may run in other processes and on other hosts (joblib, submitit): sweep.json and their job.json connect them.
The result of a search is printed and logged, too:

search.json: {metrics, directions, best: [number], trials: [{number, label, state, values, params}]}
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from hydra.experimental.callback import Callback

from pipeline.config.compose import written_overrides
from pipeline.errors import ConfigError, UserError, print_error, print_problem
from pipeline.report import plan
from pipeline.report.context import JobContext
from pipeline.report.mlflow_store import (
    OFF,
    Tracking,
    changes_result,
    flatten,
    mask_override,
    mask_secrets,
    split_masked,
    tolerate_mlflow_errors,
)
from pipeline.report.sweep_note import SweepNote, read_note
from pipeline.report.table import LabelledTexts, ReportPart, format_number, plain_lines, print_parts

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from pipeline.report.comparison import ComparisonRow
    from pipeline.report.exhibit.render import ExhibitOutput
    from pipeline.report.exhibit.sweep import SweepExhibit
    from pipeline.report.mlflow_logger import MlflowLogger

_SKIPS_COMPLETE_JOBS = "hydra_plugins.tandem_launcher.launcher.ParallelLauncher"
"""The launcher that does not run complete jobs again, so that one MLflow run can hold a sweep of several commands."""
JOB_FAILED = 1
"""Exit status of a sweep if a job has no result."""


def parent_run(context: JobContext) -> str | None:
    """The MLflow run of the job's sweep, if there is one."""
    note = read_note(context.sweep) if context.sweep else None
    return (note.run_id or None) if note else None


def is_tracked(context: JobContext) -> bool:
    """True if the job should log to MLflow; False after a failure of its sweep's run, which was reported once."""
    note = read_note(context.sweep) if context.sweep else None
    return context.tracking.enabled and not (note and note.run_id is None)


class SweepCallback(Callback):
    """Starts and finishes a sweep."""

    running: "ClassVar[SweepCallback | None]" = None
    """The sweep of this process that has begun and not ended: Hydra does not tell callbacks of Ctrl-C."""
    results: ClassVar[Path | None] = None
    """The folder of this process's last sweep or run."""
    worker_status: ClassVar[int] = 0
    """The exit status of the first job that failed in a worker process."""

    def __init__(self, tracking: Tracking, file: TextIO | None = None) -> None:
        self.tracking, self.file = tracking, file
        self.exhibit: SweepExhibit | None = None
        self.baseline: str | None = None
        self.folder = Path()

    def on_job_start(self, config: "DictConfig", **kwargs: Any) -> None:  # noqa: ARG002
        """Notes the folder of a run that is no job of a sweep."""
        from hydra.types import RunMode

        if config.hydra.mode == RunMode.RUN:
            SweepCallback.results = Path(config.hydra.runtime.output_dir)

    def on_multirun_start(self, config: "DictConfig", **kwargs: Any) -> None:  # noqa: ARG002
        """Checks the exhibit; creates the store, before any job could, and the run that contains the jobs' runs.

        Raises SystemExit for an invalid exhibit or baseline: Hydra would turn an exception into a warning.
        """
        from pipeline.report.exhibit.sweep import prepare_baseline, prepare_exhibit

        SweepCallback.worker_status = 0
        if _asks_question(config):
            return
        _experiment_first(config)
        try:
            _check_tracking(config, self.tracking)
            self.exhibit = prepare_exhibit(config)
            self.baseline = prepare_baseline(config)
        except UserError as problem:
            sys.exit(print_error(problem))
        if config.get("stage", "all") == "all":
            self.folder = SweepCallback.results = Path(config.hydra.sweep.dir).absolute()
            goes_on = config.hydra.launcher._target_ == _SKIPS_COMPLETE_JOBS
            start_sweep(self.folder, _sweep_note(config), self.tracking, self._out, goes_on)
            SweepCallback.running = self

    def on_multirun_end(self, config: "DictConfig", **kwargs: Any) -> None:  # noqa: ARG002
        """Print and log the comparison. Raises SystemExit where a job has no result, or where there is no job."""
        if _asks_question(config):
            return
        if config.get("stage", "all") == "plan" and config.get("report", "auto") != "full":
            folder = Path(config.hydra.sweep.dir).absolute()
            print_parts(plan.sweep_parts(folder), self._out)
            plan.remove_planned(folder)
        elif config.get("stage", "all") == "all":
            SweepCallback.running = None
            rows = self._finish()
            if note := read_note(self.folder):
                note.mark_ended(self.folder)
            if not rows:
                print(f"error: no job of this sweep left anything in {self.folder}.", file=sys.stderr)
            if not rows or any(row.problem for row in rows):
                sys.exit(JOB_FAILED)
        if self.worker_status:
            sys.exit(self.worker_status)

    def _finish(self) -> "list[ComparisonRow]":
        """As `finish_sweep`. Raises SystemExit where it fails: Hydra would turn an exception into a warning."""
        try:
            return finish_sweep(self.folder, self.tracking, self._out, self.exhibit, baseline=self.baseline)
        except Exception as problem:
            sys.exit(print_problem(problem))

    def interrupt(self) -> None:
        """Print and log what is there after Ctrl-C."""
        SweepCallback.running = None
        rows = finish_sweep(self.folder, self.tracking, self._out, None, interrupted=True, baseline=self.baseline)
        from pipeline.report.comparison import count_jobs, num_planned

        complete, total = count_jobs(rows, num_planned(self.folder))
        print(
            f"\ninterrupted: {complete} of {total} jobs are complete. "
            "The same command goes on: what was built is kept.",
            file=self._out,
            flush=True,
        )

    @property
    def _out(self) -> TextIO:
        return self.file or sys.stdout


def _asks_question(config: "DictConfig") -> bool:
    """True for a sweep whose sweeper serves and reports its cells itself (`pipeline.answers`)."""
    return "question" in (config.get("hydra", {}).get("sweeper") or {})


def _check_tracking(config: "DictConfig", tracking: Tracking) -> None:
    """Raises ConfigError for jobs on several hosts that would write to one database file."""
    if config.hydra.launcher.get("across_hosts") and tracking.enabled and tracking.database:
        raise ConfigError(
            "the jobs of this sweep run on several hosts, and the MLflow store is a file. Start a server (mlflow "
            "server --host HOST --port PORT) and give tracking.uri=http://HOST:PORT, or log nothing: tracking.uri=none."
        )


def _experiment_first(config: "DictConfig") -> None:
    """Puts the experiment before the sweep's parameters in every job.

    Of two files that choose for one group, Hydra obeys the last, and a sweep's own parameters come before the command
    line's: `+variant` would lose against the experiment that it varies.
    """
    from omegaconf import OmegaConf, open_dict, read_write

    params = config.hydra.sweeper.get("params")
    named = [word for word in written_overrides(config.hydra) if word.startswith("+experiment=")]
    if params and named:
        with read_write(config), open_dict(config):
            config.hydra.sweeper.params = OmegaConf.merge({"+experiment": named[-1].partition("=")[2]}, params)


def start_sweep(folder: Path, note: SweepNote, tracking: Tracking, file: TextIO, goes_on: bool = False) -> None:
    """Notes the sweep in `folder` and in MLflow; one that `goes_on` keeps the run of the command that was stopped."""
    from pipeline.report.context import command_line
    from pipeline.report.mlflow_logger import MlflowLogger

    note = replace(note, store=str(mask_secrets(tracking.address)) if tracking.enabled else OFF)
    earlier = read_note(folder) if goes_on else None
    if earlier and earlier.run_id and not earlier.ended and earlier.store == note.store and _same_jobs(earlier, note):
        replace(note, run_id=earlier.run_id).write(folder)
        return
    run_id = None
    with tolerate_mlflow_errors(tracking, lambda text: print(text, file=file, flush=True)):
        if tracking.enabled:
            logger = MlflowLogger.open(tracking)
            run_id = logger.start_run(f"sweep {_result_words(note.overrides)}", tags={"tandem.kind": "sweep"})
            logger.log_text(run_id, "overrides.txt", "".join(f"{one}\n" for one in note.overrides))
            logger.log_text(run_id, "command.txt", f"{command_line(note.command)}\n")
    replace(note, run_id=run_id).write(folder)


def _same_jobs(one: SweepNote, other: SweepNote) -> bool:
    return list(map(_result_words, one.jobs)) == list(map(_result_words, other.jobs))


def _sweep_note(config: "DictConfig") -> SweepNote:
    from pipeline.report.exhibit.sweep import job_overrides

    task = [mask_override(one) for one in written_overrides(config.hydra)]
    jobs = job_overrides(config, written_overrides(config.hydra))
    command = [mask_override(word) for word in sys.argv[1:]]
    masked = [[mask_override(word) for word in job] for job in jobs]
    return SweepNote(overrides=task, command=command, folder=os.getcwd(), jobs=masked)


def _result_words(overrides: Sequence[str]) -> str:
    return " ".join(f"{key}={value}" for key, value in map(split_masked, overrides) if changes_result(key))


def finish_sweep(
    folder: Path,
    tracking: Tracking,
    file: TextIO,
    exhibit: "SweepExhibit | None" = None,
    interrupted: bool = False,
    baseline: str | None = None,
) -> "list[ComparisonRow]":
    """Compares the jobs below `folder`: table, comparison.csv, trade-off figure, exhibit, MLflow, and its address."""
    from pipeline.report import comparison, figures

    rows = comparison.print_table(folder, file, baseline)
    made = [comparison.write_csv(rows, folder / "comparison.csv")]
    points = comparison.tradeoff_points(rows)
    if len(points) > 1:
        metric = next(row.result.quality_metric for row in rows if row.quality)
        made.append(figures.draw_tradeoff(points, folder / "tradeoff.png", metric))
    search = read_search(folder)
    if search:
        print_parts(search.parts(), file)
        made.append(folder / SEARCH_FILE)
    shown = _write_exhibit(exhibit, rows, folder) if exhibit else None
    if shown:
        print_parts(shown.parts, file)
        made += shown.files
    print(f"\nwritten: {', '.join(map(str, made))}", file=file, flush=True)
    with tolerate_mlflow_errors(tracking, lambda text: print(text, file=file, flush=True)):
        _log_to_mlflow(folder, rows, made, shown, search, tracking, file, interrupted)
    return rows


def _write_exhibit(exhibit: "SweepExhibit", rows: "list[ComparisonRow]", folder: Path) -> "ExhibitOutput":
    from pipeline.report.results import draws

    jobs = [row.result for row in rows]
    return draws.write_shares(exhibit, jobs, folder) if draws.are_draws(jobs) else exhibit.write(rows, folder)


def _log_to_mlflow(
    folder: Path,
    rows: "list[ComparisonRow]",
    made: list[Path],
    shown: "ExhibitOutput | None",
    search: "SearchResult | None",
    tracking: Tracking,
    file: TextIO,
    interrupted: bool,
) -> None:
    from pipeline.report import comparison, mlflow_view
    from pipeline.report.mlflow_logger import NOTE_TAG, MlflowLogger, select_numbers

    note = read_note(folder)
    run_id = note.run_id if note else None
    if note is None or not tracking.enabled or not run_id:
        return
    logger = MlflowLogger.open(tracking)
    complete, total = comparison.count_jobs(rows, len(note.jobs))
    with logger.ending(run_id, failed=complete < len(rows) or not rows, killed=interrupted):
        logger.log_files(run_id, made)
        logger.log_text(run_id, "comparison.md", comparison.comparison_markdown(rows, len(note.jobs)))
        logger.log_metrics(run_id, {"jobs": total, "jobs_complete": complete})
        if search:
            logger.log_metrics(run_id, search.best_metrics())
            if not interrupted:  # a parameter of a run stays as it is, and a search that goes on may find a better one
                logger.log_params(run_id, search.best_params())
            _log_objectives(logger, rows, search)
        if shown:
            logger.log_metrics(run_id, select_numbers(shown.metrics))
            logger.log_text(run_id, "exhibit.txt", "\n".join(plain_lines(shown.parts)) + "\n")
        figures = mlflow_view.log_previews(logger, run_id, [path for path in made if path.suffix == ".png"])
        logger.set_tag(run_id, NOTE_TAG, mlflow_view.sweep_note(rows, run_id, figures, len(note.jobs)))
        page = mlflow_view.save_view(logger, run_id, _result_words(note.overrides), rows)
    print(tracking.ui_hint(page), file=file, flush=True)


def _log_objectives(logger: "MlflowLogger", rows: "list[ComparisonRow]", search: "SearchResult") -> None:
    """What was searched on, where it is not among the metrics of the trials' runs: a number of an inner stage."""
    for row in rows:
        found = {f"search/{key}": row.result.metrics[key] for key in search.metrics if key in row.result.metrics}
        if row.result.run_id and found:
            logger.log_metrics(row.result.run_id, found)


SEARCH_FILE = "search.json"


@dataclass(frozen=True)
class SearchResult:
    """The trials of a search, those of earlier commands included."""

    metrics: Sequence[str]
    directions: Sequence[str]
    best: Sequence[int]
    trials: Sequence[Mapping[str, Any]]

    @property
    def best_trial(self) -> Mapping[str, Any] | None:
        """The best trial; None with several metrics."""
        return next((one for one in self.trials if [one["number"]] == list(self.best)), None)

    def parts(self) -> list[ReportPart]:
        complete = sum(one["state"] == "complete" for one in self.trials)
        facts = [("searched", f"{', '.join(self.metrics)}; {complete} of {len(self.trials)} trials complete")]
        for one in (trial for trial in self.trials if trial["number"] in self.best):
            chosen = ", ".join(f"{key.lstrip('+')}={value}" for key, value in one["params"].items())
            facts.append(("best", f"{', '.join(map(format_number, one['values']))} (trial {one['label']}): {chosen}"))
        return [LabelledTexts(tuple(facts))]

    def best_metrics(self) -> dict[str, float]:
        """`search/METRIC` of the best trial, and the number of trials."""
        own = dict(zip(self.metrics, self.best_trial["values"], strict=True)) if self.best_trial else {}
        return {"search/trials": float(len(self.trials)), **{f"search/{name}": value for name, value in own.items()}}

    def best_params(self) -> dict[str, str]:
        """`search.KEY` of the best trial."""
        chosen = self.best_trial["params"] if self.best_trial else {}
        return flatten({f"search.{key.lstrip('+')}": value for key, value in chosen.items()})


def read_search(folder: Path) -> SearchResult | None:
    """The search of a sweep's folder; None without one."""
    try:
        found = json.loads((folder / SEARCH_FILE).read_text(encoding="utf-8"))
        return SearchResult(**found)
    except (OSError, ValueError, TypeError):
        return None
