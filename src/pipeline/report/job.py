"""Reports a job that ended: prints its table, draws its figures, logs it to MLflow, and writes job.json."""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TextIO

from pipeline.artifacts import fingerprint
from pipeline.report import figures, job_result, mlflow_job, mlflow_view, sweep
from pipeline.report.context import JobContext, stage_metrics
from pipeline.report.figure_look import LINE, SCREEN
from pipeline.report.job_result import JobResult
from pipeline.report.job_summary import summary_parts
from pipeline.report.kept_figures import copy_or_draw
from pipeline.report.mlflow_logger import CurvePoint, MlflowLogger
from pipeline.report.mlflow_store import mask_secrets, tolerate_mlflow_errors
from pipeline.report.records import Records
from pipeline.report.sealed_uses import describe_use
from pipeline.report.served_series import served_series
from pipeline.report.summary import JobSummary, summarise
from pipeline.report.table import csv_text, format_with_unit, plain_lines, print_parts
from serving.metrics import definitions

REPORT_FILE = "report.txt"
_RECORD_FILES = ("requests.parquet", "timeline.parquet", "chunks.parquet", "meta.json")


@dataclass(frozen=True)
class JobReport:
    """The report of a job; `ui_hint` opens MLflow on its run (None if it was not logged)."""

    records: Records
    summary: JobSummary
    text: str
    figures: tuple[Path, ...]
    result: JobResult
    ui_hint: str | None


def report_started(context: JobContext) -> None:
    """Marks the job in job.json as running: a job of an ended sweep that is still marked so was killed."""
    job_result.running_result(context).write(context.folder)


def report_job(artifact: Path, context: JobContext, file: TextIO | None = None) -> JobReport:
    """Reports the job that left `artifact`. Raises RecordsError if it cannot be read; a failure of MLflow is printed.

    The last line tells how to open MLflow on the run, unless the job is part of a sweep, which prints it for all runs.
    """
    return _draw_and_log(print_report(artifact, context, file), context, file or sys.stdout)


def print_report(artifact: Path, context: JobContext, file: TextIO | None = None) -> JobReport:
    """Prints the job's tables and writes report.txt; draws and logs nothing. Raises RecordsError."""
    records = Records.read(artifact)
    summary = summarise(records)
    parts = summary_parts(records, summary, context, describe_use(artifact, context))
    if context.report == "full":
        print_parts(parts, file or sys.stdout)
    text = "\n".join(plain_lines(parts)) + "\n"
    fingerprint.write_atomic(context.folder / REPORT_FILE, text)
    result = replace(
        job_result.running_result(context), status="complete", artifact=str(artifact), lossless=records.meta.lossless,
        quality_metric=records.meta.quality_metric or "", transport_check=records.meta.transport_check,
        hypothetical=records.meta.hypothetical,
        metrics=summary.metrics() | _stage_metrics(context),
    )  # fmt: skip
    return JobReport(records, summary, text, (), result, None)


def _draw_and_log(report: JobReport, context: JobContext, file: TextIO) -> JobReport:
    report.result.write(context.folder)  # what was served stands, also if drawing or logging is stopped
    report = replace(report, figures=_draw_figures(report, context, file) if _shows_figures(context) else ())
    run_id, link = _log_to_mlflow(context, file, partial(_log_report, report, context))
    result = replace(report.result, run_id=run_id)
    result.write(context.folder)
    if context.report == "line":
        print(describe_briefly(result, context), file=file, flush=True)
    if link and context.sweep is None:
        print(f"\n{link}", file=file, flush=True)
    return replace(report, result=result, ui_hint=link)


def _log_report(report: JobReport, context: JobContext, logger: MlflowLogger, run: str) -> None:
    artifact, metrics, meta = Path(report.result.artifact or ""), report.summary.metrics(), report.records.meta
    logger.log_metrics(run, mlflow_view.headline(metrics))
    logger.log_curves(run, _series_points(report.records, artifact, context.started_s))
    logger.log_text(run, "metrics.csv", _metrics_csv(metrics))
    logger.log_files(run, [artifact / name for name in _RECORD_FILES], "records")
    logger.log_files(run, report.figures, "figures")
    logger.log_text(run, REPORT_FILE, report.text)
    if meta.transport_check:
        logger.set_tag(run, "tandem.transport_check", meta.transport_check)


def _series_points(records: Records, artifact: Path, started_s: float) -> Iterator[CurvePoint]:
    """`series/NAME` over virtual time, which begins with the job: its milliseconds are the steps."""
    for name, points in served_series(records, artifact).items():
        for time_s, value in points:
            yield CurvePoint(f"series/{name}", value, round(1000 * time_s), started_s + time_s)


def _metrics_csv(metrics: Mapping[str, float]) -> str:
    """Every metric of the job with its unit and meaning."""
    known = [(key, value, definitions.find(key)) for key, value in metrics.items()]
    return csv_text(
        [
            {"metric": key, "value": value, "unit": one.unit if one else "", "meaning": one.meaning if one else ""}
            for key, value, one in known
        ]
    )


_BRIEF = (("quality/mean", "quality"), ("latency/ttft_s/median", "TTFT"), ("latency/tbt_s/mean", "TBT"),
          ("throughput/goodput_tokens_per_s", ""), ("speculation/acceptance_rate", "accepted"))  # fmt: skip
"""The metrics of a job's one line, and their names there."""


def describe_briefly(result: JobResult, context: JobContext) -> str:
    """One line: `job 3, sled: quality 0.41, TTFT 0.2 s, ...; 12.0 s to build serve; report.txt in FOLDER`."""
    name = f"job {result.number}, {result.policy}" if result.number is not None else result.policy
    values = [_brief_value(key, label, result.metrics.get(key)) for key, label in _BRIEF]
    built = [one for one in context.stages if not one.cached]
    seconds, stages = sum(one.seconds for one in built), ", ".join(one.name for one in built)
    work = f"{seconds:.1f} s to build {stages}" if built else "cached"
    return f"{name}: {', '.join(filter(None, values))}; {work}; {context.folder / REPORT_FILE}"


def _brief_value(key: str, label: str, value: float | None) -> str:
    metric = definitions.find(key)
    return f"{label} {format_with_unit(metric, value)}".strip() if metric and value is not None else ""


def report_stage(context: JobContext, artifact: Path, file: TextIO | None = None) -> None:
    """Logs a job that ends with another stage than serve, and writes its job.json: numbers, figures and inputs."""
    file = file or sys.stdout
    result = replace(job_result.running_result(context), status="complete", artifact=str(artifact))
    result = replace(result, metrics=_stage_metrics(context))
    result.write(context.folder)
    run_id, link = _log_to_mlflow(context, file)
    replace(result, run_id=run_id).write(context.folder)
    if link:
        print(f"\n{link}", file=file, flush=True)


def report_failure(error: BaseException, context: JobContext, file: TextIO | None = None) -> JobResult:
    """Notes in job.json and in MLflow that the job failed, and why; the caller prints the error."""
    reason = mask_secrets(str(error) or type(error).__name__)
    result = replace(job_result.running_result(context), status="failed", error=reason)
    result.write(context.folder)
    run_id, _ = _log_to_mlflow(context, file or sys.stdout, error=reason)
    if run_id:
        result = replace(result, run_id=run_id)
        result.write(context.folder)
    return result


def _stage_metrics(context: JobContext) -> dict[str, float]:
    """`stage/NAME/METRIC` of the job's stages."""
    return {f"stage/{name}": value for one in context.stages for name, value in stage_metrics(one).items()}


def _shows_figures(context: JobContext) -> bool:
    """True unless the job is one line of a sweep without MLflow: drawing takes a fifth of a simulated job."""
    return context.report == "full" or sweep.is_tracked(context)


def _draw_figures(report: JobReport, context: JobContext, file: TextIO) -> tuple[Path, ...]:
    """The figures of the job; none where they cannot be drawn, which is said."""
    folder, look = context.folder / "figures", SCREEN if context.report == "full" else LINE
    latency, timeline = folder / "latency.png", folder / "timeline.png"

    def draw() -> None:
        figures.draw_latency(report.records, latency, look)
        figures.draw_timeline(report.records, timeline, look)

    try:
        copy_or_draw(Path(report.result.artifact or ""), folder, look, draw)
    except Exception as problem:  # whatever matplotlib raises: a finished job is not lost for it
        print(f"\nfigures: could not draw them ({type(problem).__name__}: {problem})", file=file, flush=True)
        return ()
    return latency, timeline


def _log_to_mlflow(
    context: JobContext, file: TextIO, log: Callable[[MlflowLogger, str], None] | None = None, error: str | None = None
) -> tuple[str | None, str | None]:
    """The job's run with what `log` adds to it, and the line that opens it; None for both if it is not logged."""
    with tolerate_mlflow_errors(context.tracking, lambda problem: print(f"\n{problem}", file=file, flush=True)):
        if sweep.is_tracked(context):
            logger = MlflowLogger.open(context.tracking)
            with mlflow_job.logged_job(logger, context, sweep.parent_run(context), error) as run:
                if log:
                    log(logger, run)
            return run, context.tracking.ui_hint(mlflow_view.run_page(logger.experiment_id, run))
    return None, None
