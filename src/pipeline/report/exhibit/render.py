"""Renders an exhibit as text, exhibit.json, exhibit.csv, a figure, and metrics for MLflow."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pipeline.artifacts import fingerprint
from pipeline.report.estimate import Estimate, interval_text
from pipeline.report.exhibit import plot
from pipeline.report.exhibit.claims import NO_INTERVAL, ClaimResult, count_statuses, evaluate_claims
from pipeline.report.exhibit.map_plot import draw_maps
from pipeline.report.exhibit.order import order_texts
from pipeline.report.exhibit.rows import Cell, ExhibitRow, RenderedExhibit
from pipeline.report.exhibit.schema import ExhibitColumn
from pipeline.report.mlflow_store import key_text
from pipeline.report.table import WIDTH, LabelledTexts, Remark, ReportPart, Table, csv_text, shared_decimals

_CLAIMS = (
    "claims",
    "a column's difference, in its unit, from the baseline's row or the claim's value; paired prompt by prompt where "
    "both rows served the same prompts",
)


def exhibit_parts(
    shown: RenderedExhibit, results: Sequence[ClaimResult], notes: Sequence[str] = ()
) -> list[ReportPart]:
    """Title, table, legend, claims and notes, as they are printed."""
    exhibit = shown.exhibit
    places = _claim_places(results)
    said = tuple((result.status, _claim_sentence(result, place)) for result, place in zip(results, places, strict=True))
    rest = [
        *(("differs", text) for text in exhibit.deviations),
        *(("note", text) for text in (*notes, *_missing_jobs(shown))),
    ]
    legend = (_ours(shown), *([_CLAIMS] if said else []), *sample_sizes(shown))
    found: list[ReportPart] = [exhibit.title, _table(shown), LabelledTexts(legend)]
    return [*found, *(LabelledTexts(tuple(pairs)) for pairs in (order_texts(shown), said, rest) if pairs)]


def _ours(shown: RenderedExhibit) -> tuple[str, str]:
    cells = [shown.measured_cell(row, column) for row in shown.rows for column in shown.exhibit.columns]
    made = interval_text(cell for cell in cells if isinstance(cell, Estimate))
    return "ours", f"value [{made}] (least to greatest seed); a dash: not known"


def sample_sizes(shown: RenderedExhibit) -> Iterator[tuple[str, str]]:
    """What the rows rest on; a prompt that a simulation repeats is one prompt."""
    requests = [row.num_requests for row in shown.rows if row.num_requests]
    prompts = [row.num_prompts for row in shown.rows if row.num_prompts]
    if requests and prompts:
        seeds = max((row.replicates for row in shown.rows), key=len)
        named = f" in seeds {', '.join(seeds)}" if any(seeds) else ""
        yield "sample", f"{_range(requests)} requests a row{named}, of {_range(prompts)} different prompts a seed"


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _missing_jobs(shown: RenderedExhibit) -> Iterator[str]:
    """Why rows are hypothetical, the missing jobs of rows that other jobs have filled, what tables say of their rows,
    and remarks that are cut.
    """
    for row in shown.rows:
        if row.hypothetical:
            yield f"{row.label}: {row.hypothetical}"
        filled = any(cell is not None for cell in row.measured.values())
        if row.problem and (filled or len(row.problem) > WIDTH // 2):
            yield f"{row.label}: {row.problem}"


def _table(shown: RenderedExhibit) -> Table:
    grouped = any(shown.groups)
    heads = ("group", "row") if grouped else ("row",)
    columns = [_column_cells(shown, column) for column in shown.exhibit.columns]
    named = zip(shown.exhibit.columns, columns, strict=True)
    headings = (*heads, *(f"{column.name}\n{cells[0]}" for column, cells in named))
    rows = [
        _row(shown, row, (row.group, row.label) if grouped else (row.label,), [cells[n] for cells in columns])
        for n, row in enumerate(shown.rows, 1)
    ]
    return Table(headings, tuple(rows), num_label_columns=len(heads))


def _row(shown: RenderedExhibit, row: ExhibitRow, labels: tuple[str, ...], cells: Sequence[str]) -> tuple[str, ...]:
    """The row's cells, or the reason why it has neither measured nor reported values."""
    empty = not any(cell is not None for cell in row.measured.values()) and not shown.exhibit.reported_rows().get(
        (row.group, row.label)
    )
    return (*labels, Remark(row.problem)) if empty and row.problem else (*labels, *cells)


def _column_cells(shown: RenderedExhibit, column: ExhibitColumn) -> list[str]:
    """`reported | ours` as heading and for each row, with aligned bars."""
    ours = [(format_reported(shown, row, column), format_cell(shown.measured_cell(row, column))) for row in shown.rows]
    pairs = [("reported", "ours"), *ours]
    left, right = (max(len(pair[side]) for pair in pairs) for side in (0, 1))
    return [f"{theirs:>{left}} | {own:<{right}}" for theirs, own in pairs]


def format_reported(shown: RenderedExhibit, row: ExhibitRow, column: ExhibitColumn) -> str:
    found = shown.reported_value(row, column.name)
    return "-" if found is None else str(found)


def format_cell(cell: Cell) -> str:
    """A number with its interval and the range of the seeds, in equally many digits."""
    if not isinstance(cell, Estimate):
        return "-" if cell is None else cell
    interval, spread = cell.interval, cell.seed_range
    known = [cell.value, *((interval.low, interval.high) if interval else ()), *(spread or ())]
    shape = f",.{shared_decimals(known)}f"
    bounds = f" [{interval.low:{shape}}, {interval.high:{shape}}]" if interval else ""
    return f"{cell.value:{shape}}{bounds}" + (f" ({spread[0]:{shape}} to {spread[1]:{shape}})" if spread else "")


def _claim_places(results: Sequence[ClaimResult]) -> list[str]:
    """The group of each claim, and where a statement is repeated in it, the rows, and the metric if it is needed."""
    named = [(one.claim.statement, one.group) for one in results]
    about = [(*name, _claim_rows(one)) for name, one in zip(named, results, strict=True)]
    found = []
    for one, name, rows in zip(results, named, about, strict=True):
        repeated, metric = named.count(name) > 1, about.count(rows) > 1
        parts = (one.group, rows[2] if repeated else "", one.claim.metric if metric else "")
        found.append(", ".join(filter(None, parts)))
    return found


def _claim_rows(result: ClaimResult) -> str:
    return result.claim.row + (f" against {result.claim.baseline}" if result.claim.baseline is not None else "")


def _claim_sentence(result: ClaimResult, place: str) -> str:
    """The statement, the column, the difference in the column's unit, its bounds, and how they were found."""
    where = f" ({place})" if place else ""
    if result.difference is None or result.bounds is None:
        return f"{result.claim.statement}{where}: {result.basis}"
    values = [result.difference.value, *result.bounds]
    own, low, high = (f"{value:+,.{shared_decimals(values)}f}" for value in values)
    bounds = "" if result.basis.endswith(NO_INTERVAL) else f" [{low}, {high}]"
    basis = "" if result.basis == "95 % interval" else f" ({result.basis})"
    return f"{result.claim.statement}{where}: {result.claim.metric} {own}{bounds}{basis}"


def write_files(shown: RenderedExhibit, results: Sequence[ClaimResult], folder: Path) -> list[Path]:
    """Writes exhibit.json and exhibit.csv; their paths."""
    node = {
        "title": shown.exhibit.title,
        "rows": [row_json(shown, row) for row in shown.rows],
        "claims": [claim_json(result) for result in results],
        "deviations": list(shown.exhibit.deviations),
        "assumptions": list(shown.exhibit.assumptions),
        "unmeasured_batches": list(shown.exhibit.unmeasured_batches),
    }
    as_json, as_csv = folder / "exhibit.json", folder / "exhibit.csv"
    fingerprint.write_atomic(as_json, json.dumps(node, indent=1, ensure_ascii=False) + "\n")
    fingerprint.write_atomic(as_csv, csv_text([_csv_record(shown, row) for row in shown.rows]))
    return [as_json, as_csv]


def exhibit_metrics(shown: RenderedExhibit, results: Sequence[ClaimResult]) -> dict[str, float]:
    """`exhibit/ROW/COLUMN` of every measured number, and the number of claims of each status."""
    found = {f"exhibit/claims {status}": float(n) for status, n in count_statuses(results).items()}
    for row, column in product(shown.rows, shown.exhibit.columns):
        cell = shown.measured_cell(row, column)
        if isinstance(cell, Estimate):
            place = "/".join(filter(None, ("exhibit", row.group, row.label, column.name)))
            found[key_text(place)] = cell.value
    return found


def row_json(shown: RenderedExhibit, row: ExhibitRow) -> dict[str, Any]:
    """A row as exhibit.json says it."""
    columns = {
        column.name: {
            "reported": shown.reported_value(row, column.name),
            "measured": _cell_json(shown.measured_cell(row, column)),
        }
        for column in shown.exhibit.columns
    }
    return {
        "group": row.group, "row": row.label, "problem": row.problem, "requests": row.num_requests,
        "prompts": row.num_prompts, "hypothetical": row.hypothetical, "columns": columns,
    }  # fmt: skip


def _cell_json(cell: Cell) -> Any:
    if not isinstance(cell, Estimate):
        return cell
    interval = cell.interval
    bounds = {"low": interval.low, "high": interval.high} if interval else {}
    return {"value": cell.value, **bounds, "by_replicate": dict(cell.values)}


def claim_json(result: ClaimResult) -> dict[str, Any]:
    """A claim in one group as exhibit.json says it."""
    low, high = result.bounds or (None, None)
    claim, difference = result.claim, result.difference
    return {
        "statement": claim.statement, "group": result.group, "row": claim.row, "baseline": claim.baseline,
        "value": claim.value, "metric": claim.metric, "relation": claim.relation, "margin": claim.margin,
        "reported": claim.reported, "headline": claim.headline, "status": result.status,
        "difference": difference.value if difference else None,
        "low": low, "high": high, "standard_error": difference.standard_error if difference else None,
        "basis": result.basis,
    }  # fmt: skip


def _csv_record(shown: RenderedExhibit, row: ExhibitRow) -> dict[str, object]:
    record: dict[str, object] = {"group": row.group, "row": row.label, "problem": row.problem}
    for column in shown.exhibit.columns:
        cell = shown.measured_cell(row, column)
        interval = cell.interval if isinstance(cell, Estimate) else None
        record[f"{column.name} reported"] = shown.reported_value(row, column.name)
        record[column.name] = cell.value if isinstance(cell, Estimate) else cell
        record[f"{column.name} low"] = interval.low if interval else None
        record[f"{column.name} high"] = interval.high if interval else None
    return record


@dataclass(frozen=True)
class ExhibitOutput:
    """The text, the written files, and the numbers for MLflow."""

    parts: list[ReportPart]
    files: list[Path]
    metrics: dict[str, float]


def write_exhibit(shown: RenderedExhibit, folder: Path, figure: Path, notes: Sequence[str] = ()) -> ExhibitOutput:
    """Writes exhibit.json, exhibit.csv, and the figure and maps that the exhibit declares."""
    found = evaluate_claims(shown)
    made = write_files(shown, found, folder)
    drawn = plot.draw_exhibit(shown, figure)
    maps = draw_maps(shown, figure)
    return ExhibitOutput(
        exhibit_parts(shown, found, notes), [*made, *([drawn] if drawn else []), *maps], exhibit_metrics(shown, found)
    )
