"""Reads the folder of a sweep or of one run, finished or not: its jobs, its exhibit, and their tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.artifacts.manifest import read_manifest
from pipeline.artifacts.store import Store
from pipeline.errors import ConfigError, UserError
from pipeline.report import job_result
from pipeline.report.choices import split_override
from pipeline.report.comparison import ComparisonRow, compare_results, read_jobs, tradeoff_points
from pipeline.report.exhibit.rows import RenderedExhibit
from pipeline.report.exhibit.schema import Exhibit
from pipeline.report.exhibit.stage import read_rows
from pipeline.report.exhibit.sweep import CONFIG_KEY, prepare_exhibit
from pipeline.report.export import tables
from pipeline.report.export.results import ResultTable
from pipeline.report.job_result import JOB_FILE, JobResult
from pipeline.report.mlflow_store import changes_result
from pipeline.report.prompt_sums import ROWS_FILE
from pipeline.report.records import Records, RecordsError
from pipeline.report.sweep_note import SWEEP_FILE, SweepNote, read_note

if TYPE_CHECKING:
    from pipeline.report.export.figures import NamedFigure

EXHIBIT_FILE = "exhibit.json"
_SWEEP_CONFIG = "multirun.yaml"


class FinishedError(UserError):
    """A folder has no results that can be printed."""


@dataclass(frozen=True)
class Finished:
    """The results below `folder`.

    exhibits    by the name of their tables, those whose paired values are known
    tables      of exhibits first, then the comparison of the jobs, or the metrics of the only one
    lacking     what has no result, one sentence each
    """

    folder: Path
    title: str
    note: SweepNote | None
    rows: tuple[ComparisonRow, ...]
    exhibits: Mapping[str, RenderedExhibit]
    tables: tuple[ResultTable, ...]
    lacking: tuple[str, ...] = ()

    @property
    def complete(self) -> list[ComparisonRow]:
        return [row for row in self.rows if row.problem is None]

    def job_folder(self, row: ComparisonRow) -> Path:
        return self.folder if self.note is None else self.folder / str(row.result.number)

    def artifact(self, row: ComparisonRow) -> Path:
        """The artifact of a complete job."""
        return Path(row.result.artifact or "")

    def figures(self) -> Iterator[NamedFigure]:
        """The figures of its exhibits, of what quality costs, and of a single job's latency."""
        from pipeline.report.export import figures

        for name, shown in self.exhibits.items():
            yield from figures.exhibit_figures(shown, name)
        metric = next((row.result.quality_metric for row in self.rows if row.quality), "")
        yield from figures.tradeoff_figures(tradeoff_points(self.rows), metric)
        if self.note is None:
            yield from self._latency_figures()

    def _latency_figures(self) -> Iterator[NamedFigure]:
        from pipeline.report.export import figures

        for row in self.complete:
            if row.result.artifact and (Path(row.result.artifact) / "requests.parquet").is_file():
                yield from figures.latency_figures(Records.read(Path(row.result.artifact)))


def read_finished(folder: Path, baseline: str | None = None) -> Finished:
    """The results of a sweep's or a run's folder; rows are tested against `baseline` where one is named.

    Raises FinishedError for a folder that no run or sweep left, and for one without a single complete job.
    """
    note = read_note(folder)
    found = read_jobs(folder) if note else _single_job(folder)
    if not found:
        raise FinishedError(_no_results_text(folder, note))
    rows = compare_results(found, baseline)
    if all(row.problem for row in rows):
        raise FinishedError(
            f"{folder}: none of its {len(rows)} jobs has a result ({rows[0].problem}). Run it again: "
            f"`python -m pipeline sweep resume {folder}` goes on with a sweep."
        )
    if baseline is not None and not any(row.is_baseline for row in rows):
        raise FinishedError(f"baseline={baseline}: no complete job of {folder} is that; name a policy or a value that "
                            f"jobs differ in: {', '.join(_values(rows))}.")  # fmt: skip
    exhibits, written = _exhibits(folder, note, rows)
    shown = [tables.exhibit_table(one, name) for name, one in exhibits.items()]
    title = _title(found, shown or written)
    served = [row for row in rows if row.problem is not None or "requests" in row.result.metrics]
    own = [] if not served else [tables.comparison_table(served, f"{title}: its jobs", baseline)]
    if note is None and served:
        own = [tables.job_table(rows[0], title)]
    return Finished(folder, title, note, tuple(rows), exhibits, (*shown, *written, *own), tuple(_lacking(note, rows)))


def _single_job(folder: Path) -> list[JobResult]:
    found = job_result.read_result(folder) if (folder / JOB_FILE).is_file() else None
    return [replace(found, number=None)] if found else []


def _no_results_text(folder: Path, note: SweepNote | None) -> str:
    if not folder.is_dir():
        return f"there is no folder {folder}. Name the folder of a sweep (outputs/sweeps/DATE/TIME) or of a run."
    if note:
        return f"{folder}: no job of this sweep has begun. `python -m pipeline sweep resume {folder}` runs them."
    inner = sorted(path.parent for path in folder.glob(f"*/*/{SWEEP_FILE}"))
    hint = f" Below it lies {inner[-1]}." if inner else ""
    return (
        f"{folder} is no folder of a sweep or a run: it has neither {SWEEP_FILE} nor {JOB_FILE}.{hint} Name one such "
        "as outputs/sweeps/DATE/TIME or outputs/runs/DATE/TIME."
    )


def _values(rows: Sequence[ComparisonRow]) -> list[str]:
    return list(dict.fromkeys(value for row in rows for value in row.choices.values() if value != "-"))


def _lacking(note: SweepNote | None, rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """Jobs that failed, were stopped, or have not begun."""
    for row in rows:
        if row.problem:
            name = "the run" if row.result.number is None else f"job {row.result.number}"
            choices = ", ".join(f"{key}={value}" for key, value in row.choices.items() if value != "-")
            yield f"{name}{f' ({choices})' if choices else ''}: {row.problem}"
    begun = {row.result.number for row in rows}
    waiting = [number for number in range(len(note.jobs)) if number not in begun] if note else []
    if waiting:
        yield f"{len(waiting)} jobs have not begun: {', '.join(map(str, waiting))}"


def _title(jobs: Sequence[JobResult], exhibits: Sequence[ResultTable]) -> str:
    """The exhibit's title, or what all jobs have in common."""
    if exhibits:
        return exhibits[0].title
    given = [{key: value for key, value in map(split_override, one.overrides) if changes_result(key)} for one in jobs]
    common = [f"{key}={value}" for key, value in given[0].items() if all(one.get(key) == value for one in given)]
    policies = list(dict.fromkeys(one.policy for one in jobs if one.policy))
    own = [word for word in common if not word.startswith(("policy=", "record."))]
    return ", ".join([*policies, *own])


def _exhibits(
    folder: Path, note: SweepNote | None, rows: Sequence[ComparisonRow]
) -> tuple[dict[str, RenderedExhibit], list[ResultTable]]:
    """Exhibits with paired values, and tables of those of which only exhibit.json is left."""
    if note:
        shown = _sweep_exhibit(folder, rows)
        if shown:
            return {tables.EXHIBIT: shown}, []
        written = _read_written(folder)
        return {}, [tables.written_exhibit_table(written)] if written else []
    artifact = Path(rows[0].result.artifact or "")
    if not (artifact / EXHIBIT_FILE).is_file():
        return {}, []
    shown = _stage_exhibit(artifact)
    written = None if shown else _read_written(artifact)
    return {tables.EXHIBIT: shown} if shown else {}, [tables.written_exhibit_table(written)] if written else []


def _sweep_exhibit(folder: Path, rows: Sequence[ComparisonRow]) -> RenderedExhibit | None:
    """The exhibit that the sweep's configuration declared, made anew from its jobs."""
    from omegaconf import OmegaConf

    from pipeline.config.compose import prepare_hydra

    if not (folder / _SWEEP_CONFIG).is_file():
        return None
    prepare_hydra()
    config: Any = OmegaConf.load(folder / _SWEEP_CONFIG)
    if config.get(CONFIG_KEY) is None:
        return None
    try:
        prepared = prepare_exhibit(config)
    except ConfigError:  # of an older version of the project, or narrowed: what it wrote is left
        return None
    return prepared.shown(rows) if prepared else None


def _stage_exhibit(artifact: Path) -> RenderedExhibit | None:
    """The exhibit of a report stage with the rows of the stage that it shows; None where these are gone."""
    from pipeline.config.build import construct

    manifest = read_manifest(artifact)
    stage = (manifest.args.get("table") or {}).get("_stage_") if manifest else None
    if manifest is None or stage not in manifest.inputs:
        return None
    table = Store(artifact.parents[1]).folder(stage, manifest.inputs[stage])
    exhibit = construct(manifest.args[CONFIG_KEY], None, CONFIG_KEY)
    if not isinstance(exhibit, Exhibit) or not (table / ROWS_FILE).is_file():
        return None
    return RenderedExhibit.with_reported_rows(exhibit, read_rows(table))


def _read_written(folder: Path) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = json.loads((folder / EXHIBIT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def read_records(row: ComparisonRow) -> Records | None:
    """The records of a job that served; None where there are none, or they are gone."""
    try:
        return Records.read(Path(row.result.artifact)) if row.problem is None and row.result.artifact else None
    except RecordsError:
        return None
