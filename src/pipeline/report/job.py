"""A job is over: print its table, draw its figures, log it to MLflow, and leave job.json for its sweep."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from pipeline.report import figures, mlflow_logger, outcome, sweep
from pipeline.report.context import JobContext, stage_metrics
from pipeline.report.job_summary import sheet
from pipeline.report.mlflow_logger import Logbook
from pipeline.report.mlflow_store import guarded, masked
from pipeline.report.outcome import Outcome
from pipeline.report.records import Records
from pipeline.report.summary import Summary, summarise
from pipeline.report.table import plain, show

_RECORDS = ("requests.parquet", "timeline.parquet", "chunks.parquet", "meta.json")


@dataclass(frozen=True)
class Report:
    """What a job has to show; `link` opens MLflow on its run (None where it was not logged)."""

    records: Records
    summary: Summary
    text: str
    figures: tuple[Path, ...]
    outcome: Outcome
    link: str | None


def begin(context: JobContext) -> None:
    """Say in job.json that the job runs: a job of a sweep that says so at the end was killed."""
    outcome.begun(context).write(context.folder)


def job(artifact: Path, context: JobContext, file: TextIO | None = None) -> Report:
    """Report the job that left `artifact`; raises RecordsError where that cannot be read. MLflow may fail and be told.

    The last line says how to open MLflow on the run, unless the sweep around the job will say it for all its runs.
    """
    file = file or sys.stdout
    records = Records.read(artifact)
    summary = summarise(records)
    parts = sheet(records, summary, context)
    show(parts, file)
    drawn = _draw(records, context.folder / "figures")
    text = "\n".join(plain(parts)) + "\n"
    run_id, link = _log(artifact, context, summary, text, drawn, file)
    result = replace(
        outcome.begun(context), status="complete", artifact=str(artifact), lossless=records.meta.lossless,
        quality_metric=records.meta.quality_metric or "", run_id=run_id,
        metrics=summary.metrics() | _of_stages(context),
    )  # fmt: skip
    result.write(context.folder)
    if link and context.sweep is None:
        print(f"\n{link}", file=file, flush=True)
    return Report(records, summary, text, drawn, result, link)


def stage(context: JobContext, file: TextIO | None = None) -> None:
    """Log a job that ended with a stage that is a report itself: its numbers and figures, and all it was made from; its
    sweep, if there is one, hears of the numbers.
    """
    file = file or sys.stdout
    if context.sweep:
        found = _of_stages(context)
        replace(outcome.begun(context), status="complete", metrics=found).write(context.folder)
    with guarded(context.tracking, lambda problem: print(f"\n{problem}", file=file, flush=True)):
        if sweep.is_tracked(context):
            book = Logbook.open(context.tracking)
            run = mlflow_logger.log_job(book, context, sweep.parent(context))
            book.end(run)
            print(f"\n{context.tracking.link(book.experiment_id, [run])}", file=file, flush=True)


def failed(error: BaseException, context: JobContext, file: TextIO | None = None) -> Outcome:
    """Note in job.json and in MLflow that the job failed, and why; printing the error is the caller's."""
    reason = masked(str(error) or type(error).__name__)
    result = replace(outcome.begun(context), status="failed", error=reason)
    result.write(context.folder)
    with guarded(context.tracking, lambda text: print(text, file=file or sys.stdout)):
        if sweep.is_tracked(context):
            book = Logbook.open(context.tracking)
            run_id = mlflow_logger.log_job(book, context, sweep.parent(context), reason)
            book.end(run_id, failed=True)
            result = replace(result, run_id=run_id)
            result.write(context.folder)
    return result


def _of_stages(context: JobContext) -> dict[str, float]:
    """`stage/NAME/METRIC` of what the job was made from."""
    return {f"stage/{name}": value for one in context.stages for name, value in stage_metrics(one).items()}


def _draw(records: Records, folder: Path) -> tuple[Path, ...]:
    return figures.latency(records, folder / "latency.png"), figures.timeline(records, folder / "timeline.png")


def _log(
    artifact: Path, context: JobContext, summary: Summary, text: str, drawn: tuple[Path, ...], file: TextIO
) -> tuple[str | None, str | None]:
    """The run's id and the line that opens it; None for both where it could not be logged."""
    run_id = link = None
    with guarded(context.tracking, lambda problem: print(f"\n{problem}", file=file, flush=True)):
        if sweep.is_tracked(context):
            book = Logbook.open(context.tracking)
            run = mlflow_logger.log_job(book, context, sweep.parent(context))
            book.metrics(run, summary.metrics())
            book.files(run, [artifact / name for name in _RECORDS], "records")
            book.files(run, drawn, "figures")
            book.text(run, "report.txt", text)
            book.end(run)
            run_id, link = run, context.tracking.link(book.experiment_id, [run])
    return run_id, link
