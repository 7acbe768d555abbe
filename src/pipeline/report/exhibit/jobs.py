"""Makes the rows of an exhibit from the jobs of a sweep: labels, pooled seeds, metrics with resamples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import UserError
from pipeline.report.exhibit.estimate import Estimate, Resamples, pool, resampled_sums
from pipeline.report.exhibit.rows import Cell, ExhibitRow, fill_template, parse_override
from pipeline.report.exhibit.schema import Exhibit, RowTemplate
from pipeline.report.records import RequestRecord, read_requests
from pipeline.report.summary import smooth_metric

if TYPE_CHECKING:
    from pipeline.report.comparison import ComparisonRow


@dataclass(frozen=True)
class RowKey:
    """The row of a job, and the replicate of that row that it is."""

    group: str
    label: str
    replicate: str


def choices_of(overrides: Sequence[str], base: Mapping[str, str]) -> dict[str, str]:
    """The choices of a job: its overrides over the configuration's."""
    return {**base, **dict(map(parse_override, overrides))}


def row_key(rows: RowTemplate, choices: Mapping[str, str]) -> RowKey:
    return RowKey(
        fill_template(rows.group, choices), fill_template(rows.label, choices), choices.get(rows.pool_over, "")
    )


def rows_of_jobs(exhibit: Exhibit, jobs: Sequence[ComparisonRow], base: Mapping[str, str]) -> list[ExhibitRow]:
    """The rows of the jobs, in their order."""
    assert exhibit.rows is not None
    found: dict[tuple[str, str], list[tuple[RowKey, ComparisonRow]]] = {}
    for job in jobs:
        where = row_key(exhibit.rows, choices_of(job.result.overrides, base))
        found.setdefault((where.group, where.label), []).append((where, job))
    metrics = sorted(_metrics_shown(exhibit))
    return [_row(members, metrics, base) for members in found.values()]


def _metrics_shown(exhibit: Exhibit) -> set[str]:
    shown = [*exhibit.columns, *(exhibit.column(claim.metric) for claim in exhibit.claims)]
    return {column.metric_name for column in shown}


def _row(
    members: Sequence[tuple[RowKey, ComparisonRow]], metrics: Sequence[str], base: Mapping[str, str]
) -> ExhibitRow:
    where, first = members[0]
    complete = [(one.replicate, job) for one, job in members if job.problem is None]
    estimates = [_estimates(job, replicate, metrics) for replicate, job in complete]
    measured: dict[str, Cell] = {
        metric: pool([found[metric] for found in estimates if metric in found]) for metric in metrics
    }
    choices = {**choices_of(first.result.overrides, base), "row": where.label, "group": where.group}
    return ExhibitRow(where.group, where.label, measured, choices, _problem([job for _, job in members]))


def _problem(jobs: Sequence[ComparisonRow]) -> str | None:
    """Why some of the row's jobs have no result."""
    lost = [f"job {job.result.number} {job.problem}" for job in jobs if job.problem]
    return "; ".join(lost) or None


def _estimates(job: ComparisonRow, replicate: str, metrics: Sequence[str]) -> dict[str, Estimate]:
    known = {metric: job.result.metrics[metric] for metric in metrics if metric in job.result.metrics}
    by_prompt = _requests_by_prompt(job.result.artifact)
    draws = {metric: _resample(metric, value, replicate, by_prompt) for metric, value in known.items()}
    return {
        metric: Estimate({replicate: value}, {replicate: found} if (found := draws[metric]) else {})
        for metric, value in known.items()
    }


def _requests_by_prompt(artifact: str | None) -> dict[str, list[RequestRecord]]:
    """The requests of each prompt; empty if the records are gone: there are no intervals then.

    If all requests have the same prompt (a blank one), each is one of its own: they differ in their arrival.
    """
    try:
        requests = read_requests(Path(artifact)) if artifact else []
    except UserError:
        return {}
    alike = len({request.prompt_id for request in requests}) == 1
    found: dict[str, list[RequestRecord]] = {}
    for request in requests:
        found.setdefault(request.request if alike else request.prompt_id, []).append(request)
    return dict(sorted(found.items()))


def _resample(
    metric: str, value: float, replicate: str, by_prompt: Mapping[str, Sequence[RequestRecord]]
) -> Resamples | None:
    """Resamples of the metric, scaled to the job's own value."""
    import numpy as np

    found = smooth_metric(metric)
    if found is None or not by_prompt:
        return None
    rows = [np.sum([found.sums(request) for request in requests], axis=0) for requests in by_prompt.values()]
    sums = np.asarray(rows, dtype=np.float64)
    with np.errstate(all="ignore"):
        own = float(found.combine(*sums.sum(axis=0)))
        values = found.combine(*resampled_sums(sums, replicate).T) * (value / own if own else 1.0)
    return Resamples(values, tuple(by_prompt))
