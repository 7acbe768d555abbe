"""A job is over: print its table, draw its figures, log it to MLflow, and leave job.json for its sweep."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from pipeline.report import figures, job_result, mlflow_logger, sweep
from pipeline.report.context import JobContext, stage_metrics
from pipeline.report.job_result import JobResult
from pipeline.report.job_summary import summary_parts
from pipeline.report.mlflow_logger import MlflowLogger
from pipeline.report.mlflow_store import mask_secrets, tolerate_mlflow_errors
from pipeline.report.records import Records
from pipeline.report.summary import JobSummary, summarise
from pipeline.report.table import plain_lines, print_parts

_RECORD_FILES = ("requests.parquet", "timeline.parquet", "chunks.parquet", "meta.json")


@dataclass(frozen=True)
class JobReport:
    """What a job has to show; `ui_hint` opens MLflow on its run (None where it was not logged)."""

    records: Records
    summary: JobSummary
    text: str
    figures: tuple[Path, ...]
    result: JobResult
    ui_hint: str | None


def report_started(context: JobContext) -> None:
    """Say in job.json that the job runs: a job of a sweep that says so at the end was killed."""
    job_result.running_result(context).write(context.folder)


def report_job(artifact: Path, context: JobContext, file: TextIO | None = None) -> JobReport:
    """Report the job that left `artifact`; raises RecordsError where that cannot be read. MLflow may fail and be told.

    The last line says how to open MLflow on the run, unless the sweep around the job will say it for all its runs.
    """
    file = file or sys.stdout
    records = Records.read(artifact)
    summary = summarise(records)
    parts = summary_parts(records, summary, context)
    print_parts(parts, file)
    drawn = _draw_figures(records, context.folder / "figures")
    text = "\n".join(plain_lines(parts)) + "\n"
    run_id, link = _log_to_mlflow(artifact, context, summary, text, drawn, file)
    result = replace(
        job_result.running_result(context), status="complete", artifact=str(artifact), lossless=records.meta.lossless,
        quality_metric=records.meta.quality_metric or "", run_id=run_id,
        metrics=summary.metrics() | _stage_metrics(context),
    )  # fmt: skip
    result.write(context.folder)
    if link and context.sweep is None:
        print(f"\n{link}", file=file, flush=True)
    return JobReport(records, summary, text, drawn, result, link)


def report_stage(context: JobContext, file: TextIO | None = None) -> None:
    """Log a job that ended with a stage that is a report itself: its numbers and figures, and all it was made from; its
    sweep, if there is one, gets the numbers.
    """
    file = file or sys.stdout
    if context.sweep:
        found = _stage_metrics(context)
        replace(job_result.running_result(context), status="complete", metrics=found).write(context.folder)
    with tolerate_mlflow_errors(context.tracking, lambda problem: print(f"\n{problem}", file=file, flush=True)):
        if sweep.is_tracked(context):
            book = MlflowLogger.open(context.tracking)
            run = mlflow_logger.log_job(book, context, sweep.parent_run(context))
            book.end_run(run)
            print(f"\n{context.tracking.ui_hint(book.experiment_id, [run])}", file=file, flush=True)


def report_failure(error: BaseException, context: JobContext, file: TextIO | None = None) -> JobResult:
    """Note in job.json and in MLflow that the job failed, and why; printing the error is the caller's."""
    reason = mask_secrets(str(error) or type(error).__name__)
    result = replace(job_result.running_result(context), status="failed", error=reason)
    result.write(context.folder)
    with tolerate_mlflow_errors(context.tracking, lambda text: print(text, file=file or sys.stdout)):
        if sweep.is_tracked(context):
            book = MlflowLogger.open(context.tracking)
            run_id = mlflow_logger.log_job(book, context, sweep.parent_run(context), reason)
            book.end_run(run_id, failed=True)
            result = replace(result, run_id=run_id)
            result.write(context.folder)
    return result


def _stage_metrics(context: JobContext) -> dict[str, float]:
    """`stage/NAME/METRIC` of what the job was made from."""
    return {f"stage/{name}": value for one in context.stages for name, value in stage_metrics(one).items()}


def _draw_figures(records: Records, folder: Path) -> tuple[Path, ...]:
    return figures.draw_latency(records, folder / "latency.png"), figures.draw_timeline(
        records, folder / "timeline.png"
    )


def _log_to_mlflow(
    artifact: Path, context: JobContext, summary: JobSummary, text: str, drawn: tuple[Path, ...], file: TextIO
) -> tuple[str | None, str | None]:
    """The run's id and the line that opens it; None for both where it could not be logged."""
    run_id = link = None
    with tolerate_mlflow_errors(context.tracking, lambda problem: print(f"\n{problem}", file=file, flush=True)):
        if sweep.is_tracked(context):
            book = MlflowLogger.open(context.tracking)
            run = mlflow_logger.log_job(book, context, sweep.parent_run(context))
            book.log_metrics(run, summary.metrics())
            book.log_files(run, [artifact / name for name in _RECORD_FILES], "records")
            book.log_files(run, drawn, "figures")
            book.log_text(run, "report.txt", text)
            book.end_run(run)
            run_id, link = run, context.tracking.ui_hint(book.experiment_id, [run])
    return run_id, link
