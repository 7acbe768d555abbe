"""From the jobs of a sweep to rows: labels, seeds pooled, metrics with what can be resampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import UserError
from pipeline.report.exhibit.estimate import Draws, Estimate, pooled, resampled_sums
from pipeline.report.exhibit.measures import measure
from pipeline.report.exhibit.rows import Cell, Line, chosen, fill
from pipeline.report.exhibit.schema import Exhibit, Rows
from pipeline.report.records import Served, read_requests

if TYPE_CHECKING:
    from pipeline.report.comparison import Row


@dataclass(frozen=True)
class Place:
    """Where a job belongs: its row, and which replicate of it the job is."""

    group: str
    label: str
    replicate: str


def choices_of(overrides: Sequence[str], base: Mapping[str, str]) -> dict[str, str]:
    """What a job chose: its overrides, and what it left as the configuration has it."""
    return {**base, **dict(map(chosen, overrides))}


def place(rows: Rows, choices: Mapping[str, str]) -> Place:
    return Place(fill(rows.group, choices), fill(rows.label, choices), choices.get(rows.over, ""))


def lines(exhibit: Exhibit, jobs: Sequence[Row], base: Mapping[str, str]) -> list[Line]:
    """A line for each row that a job belongs to, in the order of the jobs."""
    assert exhibit.rows is not None
    found: dict[tuple[str, str], list[tuple[Place, Row]]] = {}
    for job in jobs:
        where = place(exhibit.rows, choices_of(job.outcome.overrides, base))
        found.setdefault((where.group, where.label), []).append((where, job))
    metrics = sorted(_metrics(exhibit))
    return [_line(members, metrics, base) for members in found.values()]


def _metrics(exhibit: Exhibit) -> set[str]:
    shown = [*exhibit.columns, *(exhibit.column(claim.metric) for claim in exhibit.claims)]
    return {column.source for column in shown}


def _line(members: Sequence[tuple[Place, Row]], metrics: Sequence[str], base: Mapping[str, str]) -> Line:
    where, first = members[0]
    complete = [(one.replicate, job) for one, job in members if job.problem is None]
    estimates = [_estimates(job, replicate, metrics) for replicate, job in complete]
    measured: dict[str, Cell] = {
        metric: pooled([found[metric] for found in estimates if metric in found]) for metric in metrics
    }
    choices = {**choices_of(first.outcome.overrides, base), "row": where.label, "group": where.group}
    return Line(where.group, where.label, measured, choices, _problem([job for _, job in members]))


def _problem(jobs: Sequence[Row]) -> str | None:
    """What kept some of the row's jobs from a result."""
    lost = [f"job {job.outcome.number} {job.problem}" for job in jobs if job.problem]
    return "; ".join(lost) or None


def _estimates(job: Row, replicate: str, metrics: Sequence[str]) -> dict[str, Estimate]:
    known = {metric: job.outcome.metrics[metric] for metric in metrics if metric in job.outcome.metrics}
    by_prompt = _by_prompt(job.outcome.artifact)
    draws = {metric: _draws(metric, value, replicate, by_prompt) for metric, value in known.items()}
    return {
        metric: Estimate({replicate: value}, {replicate: found} if (found := draws[metric]) else {})
        for metric, value in known.items()
    }


def _by_prompt(artifact: str | None) -> dict[str, list[Served]]:
    """The requests of each prompt; of none where the records are gone, which intervals then lack.

    Where all ask one blank prompt each is its own: they differ in when they came.
    """
    try:
        requests = read_requests(Path(artifact)) if artifact else []
    except UserError:
        return {}
    alike = len({request.prompt_id for request in requests}) == 1
    found: dict[str, list[Served]] = {}
    for request in requests:
        found.setdefault(request.request if alike else request.prompt_id, []).append(request)
    return dict(sorted(found.items()))


def _draws(metric: str, value: float, replicate: str, by_prompt: Mapping[str, Sequence[Served]]) -> Draws | None:
    """Resamples of the metric, brought to the job's own value: a measure is right up to a factor."""
    import numpy as np

    found = measure(metric)
    if found is None or not by_prompt:
        return None
    rows = [np.sum([found.sums(request) for request in requests], axis=0) for requests in by_prompt.values()]
    sums = np.asarray(rows, dtype=np.float64)
    with np.errstate(all="ignore"):
        own = float(found.of(sums.sum(axis=0)))
        values = found.of(resampled_sums(sums, replicate)) * (value / own if own else 1.0)
    return Draws(values, tuple(by_prompt))
