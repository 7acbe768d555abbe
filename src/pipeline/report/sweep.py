"""A Hydra callback around the jobs of a multirun: an MLflow run above theirs, and one table at the end.

    hydra.callbacks.sweep: {_target_: pipeline.report.sweep.SweepCallback, tracking: ${tracking}}

The jobs may run in other processes and on other hosts (joblib, submitit): sweep.json and their job.json connect them.

The result of a search, search.json, is reported as a table and to MLflow.

search.json: {metrics, directions, best: [number], trials: [{number, label, state, values, params}]}
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hydra.experimental.callback import Callback

from pipeline.artifacts import fingerprint
from pipeline.errors import UserError
from pipeline.report.context import JobContext
from pipeline.report.mlflow_store import Tracking, flatten, mask_override, tolerate_mlflow_errors
from pipeline.report.table import LabelledTexts, ReportPart, format_number, plain_lines, print_parts

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from pipeline.report.comparison import ComparisonRow
    from pipeline.report.exhibit.render import ExhibitOutput
    from pipeline.report.exhibit.sweep import SweepExhibit

SWEEP_FILE = "sweep.json"
JOB_FAILED = 1
"""Exit status of a sweep of which a job has no result."""
BAD_EXHIBIT = 2
"""Exit status of a sweep whose exhibit cannot be: no job runs."""


def parent_run(context: JobContext) -> str | None:
    """The MLflow run of the sweep that the job is in, if there is one."""
    return _read_note(context.sweep).get("run_id") if context.sweep else None


def is_tracked(context: JobContext) -> bool:
    """Whether the job should log to MLflow: not where the sweep's own run failed, which was said for all its jobs."""
    gave_up = context.sweep is not None and _read_note(context.sweep).get("run_id", "") is None
    return context.tracking.enabled and not gave_up


def _read_note(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / SWEEP_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class SweepCallback(Callback):
    """Begins and ends what a sweep's jobs have in common."""

    def __init__(self, tracking: Tracking, file: TextIO | None = None) -> None:
        self.tracking, self.file = tracking, file
        self.exhibit: SweepExhibit | None = None

    def on_multirun_start(self, config: "DictConfig", **kwargs: Any) -> None:  # noqa: ARG002
        """Check the exhibit; create the store once, before any job could, and the run that the jobs' are nested in.

        Raises SystemExit where the exhibit cannot be: an exception would be no more than a warning of Hydra's.
        """
        from pipeline.report.exhibit.sweep import prepare_exhibit

        _experiment_first(config)
        try:
            self.exhibit = prepare_exhibit(config)
        except UserError as problem:
            print(f"error: {problem}", file=sys.stderr)
            sys.exit(BAD_EXHIBIT)
        if config.get("stage", "all") == "all":
            overrides = [mask_override(one) for one in config.hydra.overrides.task]
            start_sweep(Path(config.hydra.sweep.dir), overrides, self.tracking, self._out)

    def on_multirun_end(self, config: "DictConfig", **kwargs: Any) -> None:  # noqa: ARG002
        """Print and log the comparison. Raises SystemExit where a job has no result."""
        if config.get("stage", "all") == "all":
            rows = finish_sweep(Path(config.hydra.sweep.dir), self.tracking, self._out, self.exhibit)
            if any(row.problem for row in rows):
                sys.exit(JOB_FAILED)

    @property
    def _out(self) -> TextIO:
        return self.file or sys.stdout


def _experiment_first(config: "DictConfig") -> None:
    """Let every job name its experiment before what the sweep adds to it.

    Of two files that choose for one group, Hydra obeys the one that was added last, and a sweep's own parameters are
    added before the command line's: `+variant` would lose against the experiment that it varies.
    """
    from omegaconf import OmegaConf, open_dict, read_write

    params = config.hydra.sweeper.get("params")
    named = [word for word in config.hydra.overrides.task if word.startswith("+experiment=")]
    if params and named:
        with read_write(config), open_dict(config):
            config.hydra.sweeper.params = OmegaConf.merge({"+experiment": named[-1].partition("=")[2]}, params)


def start_sweep(folder: Path, overrides: list[str], tracking: Tracking, file: TextIO) -> str | None:
    """Note the sweep in `folder` and in MLflow; its run's id."""
    from pipeline.report.mlflow_logger import MlflowLogger

    run_id = None
    with tolerate_mlflow_errors(tracking, lambda text: print(text, file=file, flush=True)):
        if tracking.enabled:
            book = MlflowLogger.open(tracking)
            run_id = book.start_run(f"sweep {' '.join(overrides)}"[:250], tags={"tandem.kind": "sweep"})
            book.log_text(run_id, "overrides.txt", "".join(f"{one}\n" for one in overrides))
    fingerprint.write_atomic(
        folder / SWEEP_FILE, json.dumps({"run_id": run_id, "overrides": overrides}, indent=1) + "\n"
    )
    return run_id


def finish_sweep(
    folder: Path, tracking: Tracking, file: TextIO, exhibit: "SweepExhibit | None" = None
) -> "list[ComparisonRow]":
    """Compare the jobs below `folder`: table, comparison.csv, trade-off figure, the exhibit, MLflow, and the line that
    opens it.
    """
    from pipeline.report import comparison, figures

    rows = comparison.print_table(folder, file)
    made = [comparison.write_csv(rows, folder / "comparison.csv")]
    points = comparison.tradeoff_points(rows)
    if len(points) > 1:
        metric = next(row.result.quality_metric for row in rows if row.quality)
        made.append(figures.draw_tradeoff(points, folder / "tradeoff.png", metric))
    search = read_search(folder)
    if search:
        print_parts(search.parts(), file)
        made.append(folder / SEARCH_FILE)
    shown = exhibit.write(rows, folder) if exhibit else None
    if shown:
        print_parts(shown.parts, file)
        made += shown.files
    print(f"\nwritten: {', '.join(map(str, made))}", file=file, flush=True)
    with tolerate_mlflow_errors(tracking, lambda text: print(text, file=file, flush=True)):
        _log_to_mlflow(folder, rows, made, shown, search, tracking, file)
    return rows


def _log_to_mlflow(
    folder: Path,
    rows: "list[ComparisonRow]",
    made: list[Path],
    shown: "ExhibitOutput | None",
    search: "SearchResult | None",
    tracking: Tracking,
    file: TextIO,
) -> None:
    from pipeline.report.mlflow_logger import MlflowLogger

    run_id = _read_note(folder).get("run_id")
    if not tracking.enabled or not run_id:
        return
    book = MlflowLogger.open(tracking)
    book.log_files(run_id, made)
    complete = sum(row.problem is None for row in rows)
    book.log_metrics(run_id, {"jobs": len(rows), "jobs_complete": complete} | (shown.metrics if shown else {}))
    if search:
        book.log_metrics(run_id, search.best_metrics())
        book.log_params(run_id, search.best_params())
    if shown:
        book.log_text(run_id, "exhibit.txt", "\n".join(plain_lines(shown.parts)) + "\n")
    book.end_run(run_id, failed=complete < len(rows))
    runs = [row.result.run_id for row in rows if row.result.run_id]
    print(tracking.ui_hint(book.experiment_id, runs or [run_id]), file=file, flush=True)


SEARCH_FILE = "search.json"


@dataclass(frozen=True)
class SearchResult:
    """The trials of a search, earlier commands' too."""

    metrics: Sequence[str]
    directions: Sequence[str]
    best: Sequence[int]
    trials: Sequence[Mapping[str, Any]]

    @property
    def best_trial(self) -> Mapping[str, Any] | None:
        """The best trial; with several metrics there is no such thing."""
        return next((one for one in self.trials if [one["number"]] == list(self.best)), None)

    def parts(self) -> list[ReportPart]:
        """What is printed."""
        complete = sum(one["state"] == "complete" for one in self.trials)
        facts = [("searched", f"{', '.join(self.metrics)}; {complete} of {len(self.trials)} trials complete")]
        for one in (trial for trial in self.trials if trial["number"] in self.best):
            chosen = ", ".join(f"{key.lstrip('+')}={value}" for key, value in one["params"].items())
            facts.append(("best", f"{', '.join(map(format_number, one['values']))} (trial {one['label']}): {chosen}"))
        return [LabelledTexts(tuple(facts))]

    def best_metrics(self) -> dict[str, float]:
        """`search/METRIC` of the best trial, and how many there were."""
        own = dict(zip(self.metrics, self.best_trial["values"], strict=True)) if self.best_trial else {}
        return {"search/trials": float(len(self.trials)), **{f"search/{name}": value for name, value in own.items()}}

    def best_params(self) -> dict[str, str]:
        """`search.KEY` of the best trial."""
        chosen = self.best_trial["params"] if self.best_trial else {}
        return flatten({f"search.{key.lstrip('+')}": value for key, value in chosen.items()})


def read_search(folder: Path) -> SearchResult | None:
    """What was searched in a sweep's folder; None where nothing was."""
    try:
        found = json.loads((folder / SEARCH_FILE).read_text(encoding="utf-8"))
        return SearchResult(**found)
    except (OSError, ValueError, TypeError):
        return None
