"""Turns exhibits, the comparison of a sweep and the metrics of one job into tables of results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.report.comparison import ComparisonRow, baseline_remark
from pipeline.report.estimate import Estimate, estimate
from pipeline.report.exhibit.render import sample_sizes
from pipeline.report.exhibit.rows import Cell, RenderedExhibit
from pipeline.report.exhibit.schema import Exhibit, ExhibitColumn
from pipeline.report.export.results import Direction, ResultCell, ResultColumn, ResultRow, ResultTable
from pipeline.report.job_result import transport_checks
from pipeline.report.prompt_sums import prompt_sums, requests_by_prompt
from pipeline.report.summary import QUALITY
from pipeline.report.text_reference import RequestsByPrompt
from serving.metrics import definitions

EXHIBIT, COMPARISON, METRICS = "exhibit", "comparison", "metrics"
"""The names of the tables, and so of their files."""


def comparison_table(rows: Sequence[ComparisonRow], title: str, baseline: str | None = None) -> ResultTable:
    """A row for each job of a sweep; jobs with the same prompts are one group.

    The rows are compared with their baselines where a `baseline` is named, else with the best of their group.
    """
    keys = [key for key in (QUALITY, *definitions.COMPARED) if any(key in row.result.metrics for row in rows)]
    by_job = [_served(row, keys) for row in rows]
    groups = _prompt_groups(rows)
    numbered = len({tuple(row.choices.values()) for row in rows}) < len(rows)
    found = [
        ResultRow(_labels(row, numbered), served.cells, group, row.problem or "", served.num_requests)
        for row, served, group in zip(rows, by_job, groups, strict=True)
    ]
    heads = (*(("job",) if numbered else ()), *(rows[0].choices if rows else ()))
    columns = tuple(metric_column(key, _quality_name(rows) if key == QUALITY else "") for key in keys)
    against = _baselines(rows) if baseline is not None else None
    notes = [("baseline", baseline_remark(rows, baseline) or baseline)] if baseline is not None else []
    notes += [("note", text) for text in transport_checks(row.result for row in rows)]
    return ResultTable(COMPARISON, title, heads, columns, tuple(found), against, tuple(notes))


@dataclass(frozen=True)
class _Served:
    """What a table keeps of a job's records, which may be large."""

    cells: tuple[ResultCell, ...]
    num_requests: int


def _served(row: ComparisonRow, keys: Sequence[str]) -> _Served:
    if row.problem is not None:
        return _Served((), 0)
    requests = requests_by_prompt(row.result.artifact)
    cells = tuple(_job_cell(row.result.metrics.get(key), key, requests) for key in keys)
    return _Served(cells, sum(map(len, requests.values())))


def _labels(row: ComparisonRow, numbered: bool) -> tuple[str, ...]:
    number = "-" if row.result.number is None else str(row.result.number)
    return (*((number,) if numbered else ()), *row.choices.values())


def _quality_name(rows: Sequence[ComparisonRow]) -> str:
    metrics = {row.result.quality_metric for row in rows if row.result.quality_metric}
    return metrics.pop() if len(metrics) == 1 else "quality"


def _baselines(rows: Sequence[ComparisonRow]) -> dict[int, int]:
    """The place of each row's baseline, but where it is known that it served other prompts."""
    places = {row.result.number: place for place, row in enumerate(rows)}
    found = {place: places[row.baseline] for place, row in enumerate(rows) if row.baseline is not None}
    served = [row.prompts for row in rows]
    return {own: other for own, other in found.items() if len({served[own], served[other]} - {None}) < 2}


def _prompt_groups(rows: Sequence[ComparisonRow]) -> list[str]:
    """The name of each row's group; empty where all complete jobs served the same prompts. Without its records, a
    complete job is a group of its own.
    """
    complete = [row for row in rows if row.problem is None]
    if len({row.prompts for row in complete}) < 2 and all(row.prompts is not None for row in complete):
        return [""] * len(rows)
    names = {row.prompts: f"prompts of job {row.result.number}" for row in reversed(complete)}
    lost = ["no records" if row.problem else f"job {row.result.number}, no records" for row in rows]
    return [other if row.prompts is None else names[row.prompts] for row, other in zip(rows, lost, strict=True)]


def _job_cell(value: float | None, key: str, requests: RequestsByPrompt) -> ResultCell:
    metric = definitions.find(key)
    if value is None or metric is None:
        return ResultCell()
    sums = prompt_sums(key, value, requests)
    return ResultCell.of(estimate(value, "", sums).scaled(metric.scale), sums)


def metric_column(key: str, name: str = "") -> ResultColumn:
    """The column of a metric, in the unit in which it is printed, under `name` or its own heading."""
    metric = definitions.find(key)
    assert metric is not None, key
    statistic = key.removeprefix(metric.key).strip("/") if len(metric.keys) > 1 else ""
    own = name or _NAMES.get(metric.key) or metric.label or metric.heading.replace("\n", " ") or metric.key
    unit = "" if metric.unit == "score" else metric.printed_unit
    return ResultColumn(f"{own} {statistic}".strip(), unit, metric.better, key)


_NAMES = {
    "latency/service_s_per_token": "service a token",
    "resources/uplink_nbytes": "uplink",
    "throughput/goodput_tokens_per_s": "goodput",
    "throughput/slo_violation_rate": "SLO violations",
    "speculation/acceptance_rate": "accepted",
    "speculation/acceptance_length": "acceptance length",
    "speculation/acceptance_length_with_bonus": "acceptance length with bonus",
    "offloading/chunk_share": "chunks asked",
    "offloading/token_share": "tokens offloaded",
    "resources/device_j_per_token": "device energy",
    "resources/radio_j_per_token": "radio energy",
    "resources/device_total_j_per_token": "chip and radio",
    "resources/cloud_j_per_token": "cloud energy",
    "cost/usd_per_million_tokens": "cloud cost",
}
"""Names without units of metrics whose headings have them, or whose labels are short for a page."""


def job_table(row: ComparisonRow, title: str) -> ResultTable:
    """A row for each of the main metrics of one job."""
    result = row.result
    keys = [key for key in dict.fromkeys((*definitions.HEADLINE, *definitions.COMPARED)) if key in result.metrics]
    requests = requests_by_prompt(result.artifact)
    found = []
    for key in keys:
        column = metric_column(key, _quality_name([row]) if key == QUALITY else "")
        cells = (_job_cell(result.metrics[key], key, requests),)
        found.append(ResultRow((column.name, column.unit or "-"), cells, num_requests=sum(map(len, requests.values()))))
    return ResultTable(METRICS, title, ("metric", "unit"), (ResultColumn(result.policy or "value"),), tuple(found))


def exhibit_table(shown: RenderedExhibit, name: str = EXHIBIT) -> ResultTable:
    """The exhibit's rows and columns, with what the paper reports."""
    columns = shown.exhibit.columns
    rows = tuple(
        ResultRow(
            (row.label,), tuple(_exhibit_cell(shown.measured_cell(row, one), shown.reported_value(row, one.name))
                                for one in columns), row.group, row.problem or "", row.num_requests)
        for row in shown.rows
    )  # fmt: skip
    notes = (*sample_sizes(shown), *(("differs", text) for text in shown.exhibit.deviations))
    return ResultTable(name, shown.exhibit.title, ("row",), tuple(map(_exhibit_column, columns)), rows, {}, notes)


def _exhibit_cell(found: Cell, reported: float | str | None) -> ResultCell:
    if isinstance(found, Estimate):
        return ResultCell.of(found, reported=reported)
    return ResultCell(text=found or "", reported=reported)


def _exhibit_column(column: ExhibitColumn) -> ResultColumn:
    """The unit stands behind the last comma of the name where the name has one, as in `TBT, ms`."""
    metric = definitions.find(column.metric_name)
    name, comma, unit = column.name.rpartition(", ")
    is_unit = bool(comma) and len(unit.split()) < 3 and column.relative is None
    better = metric.better if metric else ""
    return ResultColumn(
        name if is_unit else column.name, unit if is_unit else "", _turned(better) if column.scale < 0 else better,
        column.metric_name,
    )  # fmt: skip


def _turned(better: Direction) -> Direction:
    turned: dict[Direction, Direction] = {"higher": "lower", "lower": "higher", "": ""}
    return turned[better]


def written_exhibit_table(node: Mapping[str, Any], exhibit: Exhibit | None = None, name: str = EXHIBIT) -> ResultTable:
    """The table of an exhibit.json or of a kept result, which have intervals and no paired values: no row is tested.

    `exhibit` is its declaration, where it is known: it says in which columns a lower value is better.
    """
    names = list(dict.fromkeys(column for row in node["rows"] for column in row["columns"]))
    columns = [_exhibit_column(exhibit.column(one)) if exhibit else ResultColumn(one) for one in names]
    rows = tuple(
        ResultRow(
            (row["row"],), tuple(_written_cell(row["columns"].get(one, {})) for one in names), row.get("group") or "",
            row.get("problem") or "", row.get("requests") or 0,
        )
        for row in node["rows"]
    )  # fmt: skip
    return ResultTable(name, node["title"], ("row",), tuple(columns), rows, {}, tuple(_written_notes(node)))


def _written_notes(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "note", "made from written values, which have intervals and no values by prompt: no row is tested"
    yield from (("differs", text) for text in node.get("deviations", ()))


def _written_cell(node: Mapping[str, Any]) -> ResultCell:
    measured, reported = node.get("measured"), node.get("reported")
    if not isinstance(measured, Mapping):
        return ResultCell(text=str(measured) if measured is not None else "", reported=reported)
    return ResultCell(
        measured["value"], measured.get("low"), measured.get("high"), "", reported, measured.get("by_replicate", {})
    )
