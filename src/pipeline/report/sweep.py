"""A multirun around its jobs, as a Hydra callback: an MLflow run for them to be in, and one table at the end.

    hydra.callbacks.sweep: {_target_: pipeline.report.sweep.SweepCallback, tracking: ${tracking}}

The jobs may run in other processes and on other hosts (joblib, submitit): sweep.json and their job.json connect them.

What a search found, for the report of its sweep: search.json as a table, and for MLflow.

search.json: {metrics, directions, best: [number], trials: [{number, label, state, values, chosen}]}
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
from pipeline.report.mlflow_store import Tracking, flat, guarded, masked_override
from pipeline.report.table import Facts, Part, number, plain, show

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from pipeline.report.comparison import Row
    from pipeline.report.exhibit.render import Made
    from pipeline.report.exhibit.sweep import Prepared

NAME = "sweep.json"
FAILED = 1
"""Exit status of a sweep of which a job has no result."""
REFUSED = 2
"""Exit status of a sweep whose exhibit cannot be: no job runs."""


def parent(context: JobContext) -> str | None:
    """The MLflow run of the sweep that the job is in, if there is one."""
    return _noted(context.sweep).get("run_id") if context.sweep else None


def is_tracked(context: JobContext) -> bool:
    """Whether the job should log to MLflow: not where the sweep's own run failed, which was said for all its jobs."""
    gave_up = context.sweep is not None and _noted(context.sweep).get("run_id", "") is None
    return context.tracking.is_on and not gave_up


def _noted(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class SweepCallback(Callback):
    """Begins and ends what a sweep's jobs have in common."""

    def __init__(self, tracking: Tracking, file: TextIO | None = None) -> None:
        self.tracking, self.file = tracking, file
        self.exhibit: Prepared | None = None

    def on_multirun_start(self, config: "DictConfig", **kwargs: Any) -> None:  # noqa: ARG002
        """Check the exhibit; create the store once, before any job could, and the run that the jobs' are nested in.

        Raises SystemExit where the exhibit cannot be: an exception would be no more than a warning of Hydra's.
        """
        from pipeline.report.exhibit.sweep import prepared

        _experiment_first(config)
        try:
            self.exhibit = prepared(config)
        except UserError as problem:
            print(f"error: {problem}", file=sys.stderr)
            sys.exit(REFUSED)
        if config.get("stage", "all") == "all":
            overrides = [masked_override(one) for one in config.hydra.overrides.task]
            begin(Path(config.hydra.sweep.dir), overrides, self.tracking, self._out)

    def on_multirun_end(self, config: "DictConfig", **kwargs: Any) -> None:  # noqa: ARG002
        """Print and log the comparison. Raises SystemExit where a job has no result."""
        if config.get("stage", "all") == "all":
            rows = end(Path(config.hydra.sweep.dir), self.tracking, self._out, self.exhibit)
            if any(row.problem for row in rows):
                sys.exit(FAILED)

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


def begin(folder: Path, overrides: list[str], tracking: Tracking, file: TextIO) -> str | None:
    """Note the sweep in `folder` and in MLflow; its run's id."""
    from pipeline.report.mlflow_logger import Logbook

    run_id = None
    with guarded(tracking, lambda text: print(text, file=file, flush=True)):
        if tracking.is_on:
            book = Logbook.open(tracking)
            run_id = book.begin(f"sweep {' '.join(overrides)}"[:250], tags={"tandem.kind": "sweep"})
            book.text(run_id, "overrides.txt", "".join(f"{one}\n" for one in overrides))
    fingerprint.replace(folder / NAME, json.dumps({"run_id": run_id, "overrides": overrides}, indent=1) + "\n")
    return run_id


def end(folder: Path, tracking: Tracking, file: TextIO, exhibit: "Prepared | None" = None) -> "list[Row]":
    """Compare the jobs below `folder`: table, comparison.csv, trade-off figure, the exhibit, MLflow, and the line that
    opens it.
    """
    from pipeline.report import comparison, tradeoff

    rows = comparison.print_table(folder, file)
    made = [comparison.write(rows, folder / "comparison.csv")]
    points = comparison.points(rows)
    if len(points) > 1:
        metric = next(row.outcome.quality_metric for row in rows if row.quality)
        made.append(tradeoff.draw(points, folder / "tradeoff.png", metric))
    search = read(folder)
    if search:
        show(search.parts(), file)
        made.append(folder / SEARCH_REPORT)
    shown = exhibit.show(rows, folder) if exhibit else None
    if shown:
        show(shown.parts, file)
        made += shown.files
    print(f"\nwritten: {', '.join(map(str, made))}", file=file, flush=True)
    with guarded(tracking, lambda text: print(text, file=file, flush=True)):
        _log(folder, rows, made, shown, search, tracking, file)
    return rows


def _log(
    folder: Path, rows: "list[Row]", made: list[Path], shown: "Made | None", search: "Searched | None",
    tracking: Tracking, file: TextIO,
) -> None:  # fmt: skip
    from pipeline.report.mlflow_logger import Logbook

    run_id = _noted(folder).get("run_id")
    if not tracking.is_on or not run_id:
        return
    book = Logbook.open(tracking)
    book.files(run_id, made)
    complete = sum(row.problem is None for row in rows)
    book.metrics(run_id, {"jobs": len(rows), "jobs_complete": complete} | (shown.metrics if shown else {}))
    if search:
        book.metrics(run_id, search.numbers())
        book.params(run_id, search.parameters())
    if shown:
        book.text(run_id, "exhibit.txt", "\n".join(plain(shown.parts)) + "\n")
    book.end(run_id, failed=complete < len(rows))
    runs = [row.outcome.run_id for row in rows if row.outcome.run_id]
    print(tracking.link(book.experiment_id, runs or [run_id]), file=file, flush=True)


SEARCH_REPORT = "search.json"


@dataclass(frozen=True)
class Searched:
    """The trials of a search, earlier commands' too."""

    metrics: Sequence[str]
    directions: Sequence[str]
    best: Sequence[int]
    trials: Sequence[Mapping[str, Any]]

    @property
    def found(self) -> Mapping[str, Any] | None:
        """The best trial; with several metrics there is no such thing."""
        return next((one for one in self.trials if [one["number"]] == list(self.best)), None)

    def parts(self) -> list[Part]:
        """What is printed."""
        complete = sum(one["state"] == "complete" for one in self.trials)
        facts = [("searched", f"{', '.join(self.metrics)}; {complete} of {len(self.trials)} trials complete")]
        for one in (trial for trial in self.trials if trial["number"] in self.best):
            chosen = ", ".join(f"{key.lstrip('+')}={value}" for key, value in one["chosen"].items())
            facts.append(("best", f"{', '.join(map(number, one['values']))} (trial {one['label']}): {chosen}"))
        return [Facts(tuple(facts))]

    def numbers(self) -> dict[str, float]:
        """`search/METRIC` of the best trial, and how many there were."""
        own = dict(zip(self.metrics, self.found["values"], strict=True)) if self.found else {}
        return {"search/trials": float(len(self.trials)), **{f"search/{name}": value for name, value in own.items()}}

    def parameters(self) -> dict[str, str]:
        """`search.KEY` of the best trial."""
        chosen = self.found["chosen"] if self.found else {}
        return flat({f"search.{key.lstrip('+')}": value for key, value in chosen.items()})


def read(folder: Path) -> Searched | None:
    """What was searched in a sweep's folder; None where nothing was."""
    try:
        found = json.loads((folder / SEARCH_REPORT).read_text(encoding="utf-8"))
        return Searched(**found)
    except (OSError, ValueError, TypeError):
        return None
