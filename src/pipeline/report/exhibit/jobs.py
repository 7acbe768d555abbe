"""Makes the rows of an exhibit from the jobs of a sweep: labels, pooled seeds, metrics with resamples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pipeline.report.estimate import Estimate, estimate, pool
from pipeline.report.exhibit.rows import Cell, ExhibitRow, fill_template, parse_override
from pipeline.report.exhibit.schema import Exhibit, RowTemplate
from pipeline.report.exhibit.stage import read_rows
from pipeline.report.prompt_sums import PromptSums, prompt_sums, read_stage_rows, requests_by_prompt, stage_sums
from pipeline.report.text_reference import TEXT_METRICS, RequestsByPrompt, text_metrics, with_reference

if TYPE_CHECKING:
    from pipeline.report.comparison import ComparisonRow

T = TypeVar("T")
_STAGE = "stage/"
"""Begins the metrics that a stage wrote."""


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
    if exhibit.rows.from_table:
        return _rows_of_tables(exhibit.rows, jobs, base)
    found: dict[tuple[str, str], list[tuple[RowKey, ComparisonRow]]] = {}
    for job in jobs:
        where = row_key(exhibit.rows, choices_of(job.result.overrides, base))
        found.setdefault((where.group, where.label), []).append((where, job))
    metrics = sorted(_metrics_shown(exhibit))
    compared = any(metric.startswith(TEXT_METRICS) for metric in metrics)
    references = _reference_requests(exhibit.rows, found) if compared else {}
    return [_row(members, metrics, base, references) for members in found.values()]


def _rows_of_tables(template: RowTemplate, jobs: Sequence[ComparisonRow], base: Mapping[str, str]) -> list[ExhibitRow]:
    """The rows of the tables that the jobs' goals wrote, pooled over the jobs; without any, one that says why."""
    found: dict[tuple[str, str], list[Mapping[str, Cell]]] = {}
    chosen: dict[tuple[str, str], Mapping[str, str]] = {}
    seen, why = set[tuple[tuple[str, str], str]](), dict[tuple[str, str], str]()
    for job in jobs:
        if job.problem is not None or not job.result.artifact:
            continue
        choices = choices_of(job.result.overrides, base)
        replicate = row_key(template, choices).replicate
        for row in read_rows(Path(job.result.artifact), replicate):
            group, label = _table_place(template, choices, row)
            place = (
                (group, label)
                if ((group, label), replicate) not in seen
                else (group, f"{label}, job {job.result.number}")
            )
            seen.add((place, replicate))
            found.setdefault(place, []).append(row.measured)
            chosen.setdefault(place, choices)
            if row.problem:
                why.setdefault(place, row.problem)
    if not found:
        return [ExhibitRow("", "no table", problem=lost_jobs(jobs) or "no job left an artifact")] if jobs else []
    return [
        ExhibitRow(*place, _pooled_cells(tables), chosen[place], problem=why.get(place))
        for place, tables in _in_order_of_groups(found).items()
    ]


def _table_place(template: RowTemplate, choices: Mapping[str, str], row: ExhibitRow) -> tuple[str, str]:
    """The group and the label of a table's row."""
    known = {**choices, "row": row.label, "group": row.group}
    return fill_template(template.group or "{group}", known), fill_template(template.label or "{row}", known)


def _in_order_of_groups(found: Mapping[tuple[str, str], T]) -> dict[tuple[str, str], T]:
    """The rows of a group behind one another: each job brings rows of several groups."""
    groups = list(dict.fromkeys(group for group, _ in found))
    return {place: found[place] for place in sorted(found, key=lambda place: groups.index(place[0]))}


def _pooled_cells(tables: Sequence[Mapping[str, Cell]]) -> dict[str, Cell]:
    """Numbers pooled; of texts the first."""
    cells = {metric: [table[metric] for table in tables if metric in table] for table in tables for metric in table}
    return {
        metric: pool([cell for cell in own if isinstance(cell, Estimate)]) or own[0] for metric, own in cells.items()
    }


def _reference_requests(
    rows: RowTemplate, found: Mapping[tuple[str, str], Sequence[tuple[RowKey, ComparisonRow]]]
) -> dict[tuple[str, str], RequestsByPrompt]:
    """(group, replicate) -> the requests of the row that others' texts are compared with."""
    return {
        (where.group, where.replicate): requests_by_prompt(job.result.artifact)
        for (_, label), members in found.items()
        if label == rows.text_reference
        for where, job in members
        if job.problem is None
    }


def _metrics_shown(exhibit: Exhibit) -> set[str]:
    shown = [*exhibit.columns, *(exhibit.column(claim.metric) for claim in exhibit.claims)]
    return {column.metric_name for column in shown}


def _row(
    members: Sequence[tuple[RowKey, ComparisonRow]],
    metrics: Sequence[str],
    base: Mapping[str, str],
    references: Mapping[tuple[str, str], RequestsByPrompt],
) -> ExhibitRow:
    where, first = members[0]
    complete = [(one.replicate, job) for one, job in members if job.problem is None]
    by_prompt = [
        with_reference(requests_by_prompt(job.result.artifact), references.get((where.group, replicate), {}))
        for replicate, job in complete
    ]
    estimates = [
        _estimates(job, replicate, metrics, found) for (replicate, job), found in zip(complete, by_prompt, strict=True)
    ]
    measured: dict[str, Cell] = {
        metric: pool([found[metric] for found in estimates if metric in found]) for metric in metrics
    }
    choices = {**choices_of(first.result.overrides, base), "row": where.label, "group": where.group}
    num_requests = sum(len(requests) for found in by_prompt for requests in found.values())
    hypothetical = next((job.result.hypothetical for _, job in complete if job.result.hypothetical), "")
    problem = lost_jobs([job for _, job in members])
    return ExhibitRow(where.group, where.label, measured, choices, problem, num_requests, hypothetical)


def lost_jobs(jobs: Sequence[ComparisonRow]) -> str | None:
    """Why some of these jobs have no result."""
    lost = [f"job {job.result.number} {job.problem}" for job in jobs if job.problem]
    return "; ".join(lost) or None


def _estimates(
    job: ComparisonRow, replicate: str, metrics: Sequence[str], by_prompt: RequestsByPrompt
) -> dict[str, Estimate]:
    known = {metric: job.result.metrics[metric] for metric in metrics if metric in job.result.metrics}
    known |= text_metrics([metric for metric in metrics if metric.startswith(TEXT_METRICS)], by_prompt)
    of_stages = read_stage_rows(job.result.artifact) if any(metric.startswith(_STAGE) for metric in known) else {}

    def sums(metric: str, value: float) -> PromptSums | None:
        return stage_sums(metric, of_stages) if metric.startswith(_STAGE) else prompt_sums(metric, value, by_prompt)

    return {metric: estimate(value, replicate, sums(metric, value)) for metric, value in known.items()}
