"""Columns and claims that an exhibit has got since its result was kept, from the rows of the kept result.

A kept row has the value of each column by seed, and neither requests nor resamples. What is new is decided by its seeds
alone (Student's t). What was kept stays: a difference of which another number or margin is asked keeps its interval.
`python -m pipeline results evaluate EXPERIMENT` writes it.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from pipeline.config import sources
from pipeline.report.estimate import Estimate
from pipeline.report.exhibit.claims import claim_status, evaluate_claims
from pipeline.report.exhibit.jobs import RowKey
from pipeline.report.exhibit.render import claim_json, row_json
from pipeline.report.exhibit.rows import Cell, ExhibitRow, RenderedExhibit
from pipeline.report.exhibit.schema import Claim, Exhibit, ExhibitColumn, RelativeTo
from pipeline.report.results.kept import KeptResult, KeptResultError
from pipeline.report.statistics import MeanError


def evaluate(result: KeptResult, exhibit: Exhibit, places: Set[RowKey]) -> KeptResult:
    """The kept result with the columns, claims and texts of `exhibit`. A column of a kept name is the kept one; of its
    ratios those that are refused today (`can_divide`) are left out.

    places    the rows and seeds that the experiment has today; empty if they are known only after its jobs

    Raises KeptResultError for a configuration that has changed otherwise, and for a new column or claim whose metric
    no kept column shows.
    """
    before = result.exhibit["rows"]
    changed = [str(change) for change in sources.changed_files(result.files)]
    if places and places != set(_places(before)):
        changed.append("the experiment has other rows or seeds")
    if changed:
        raise KeptResultError(f"{result.experiment}: {'; '.join(changed)}. Run it again: `{result.command}`.")
    shown = RenderedExhibit.with_reported_rows(exhibit, [_row(node, exhibit) for node in before])
    known = {name for node in before for name in node["columns"]}
    _check_columns(result, shown, [column for column in exhibit.columns if column.name not in known])
    nodes = {(node.get("group", ""), node["row"]): node for node in before}
    rows = [_row_with_columns(shown, row, nodes.get((row.group, row.label), {})) for row in shown.rows]
    texts = {
        "title": exhibit.title, "deviations": list(exhibit.deviations), "assumptions": list(exhibit.assumptions),
        "unmeasured_batches": list(exhibit.unmeasured_batches),
    }  # fmt: skip
    claims = _claims(result, shown)
    digest = sources.exhibit_digest(list(result.files))
    exhibit_of_today = {**result.exhibit, **texts, "rows": rows, "claims": claims}
    return replace(result, exhibit=exhibit_of_today, exhibit_digest=digest).with_later_claims(result)


def _places(rows: Sequence[Mapping[str, Any]]) -> Iterator[RowKey]:
    """Yields the groups, rows and seeds of the kept rows that were run."""
    for row in rows:
        cells = [column.get("measured") for column in row["columns"].values()]
        for seed in {seed for cell in cells if isinstance(cell, dict) for seed in cell["by_replicate"]}:
            yield RowKey(row.get("group", ""), row["row"], seed)


def _row(node: Mapping[str, Any], exhibit: Exhibit) -> ExhibitRow:
    """The row with the values by seed of the columns that show a metric as it is."""
    shown = [column for column in exhibit.columns if column.relative is None and column.name in node["columns"]]
    return ExhibitRow(
        node.get("group", ""), node["row"], {one.metric_name: _cell(node, one) for one in shown},
        problem=node.get("problem"), num_requests=node.get("requests", 0), hypothetical=node.get("hypothetical", ""),
    )  # fmt: skip


def _cell(node: Mapping[str, Any], column: ExhibitColumn) -> Cell:
    cell = node["columns"][column.name].get("measured")
    if not isinstance(cell, dict):
        return cell if isinstance(cell, str) else None
    return Estimate({seed: value / column.scale for seed, value in cell["by_replicate"].items()})


def _check_columns(result: KeptResult, shown: RenderedExhibit, new: Sequence[ExhibitColumn]) -> None:
    for column in new:
        if all(shown.measured_cell(row, column) is None for row in shown.rows):
            raise KeptResultError(
                f"{result.experiment}: no kept column shows {column.metric_name}, which {column.name!r} needs. Run it "
                f"again: `{result.command}`."
            )


def _row_with_columns(shown: RenderedExhibit, row: ExhibitRow, before: Mapping[str, Any]) -> dict[str, Any]:
    """The kept row: its cells, those of new columns, and what is reported today."""
    found, kept = row_json(shown, row), before.get("columns", {})
    for column, (name, node) in zip(shown.exhibit.columns, found["columns"].items(), strict=True):
        cell = shown.measured_cell(row, column)
        if name in kept:
            node["measured"] = None if _is_refused(shown, row, column) else kept[name].get("measured")
        elif isinstance(cell, Estimate) and len(cell.values) > 1:
            half = MeanError.of(list(cell.values.values()), 0.0).half_width()
            value, by_seed = cell.value, node["measured"]["by_replicate"]
            node["measured"] = {"value": value, "low": value - half, "high": value + half, "by_replicate": by_seed}
    return {**found, **{key: value for key, value in before.items() if key != "columns"}}


def _is_refused(shown: RenderedExhibit, row: ExhibitRow, column: ExhibitColumn) -> bool:
    """True for a ratio that is not known though the kept rows have what it is made of: a denominator is 0."""
    if column.relative is None or shown.measured_cell(row, column) is not None:
        return False
    return shown.measured_cell(row, replace(column, relative=_as_difference(column.relative))) is not None


def _as_difference(step: RelativeTo) -> RelativeTo:
    return replace(step, comparison="difference", then=step.then and _as_difference(step.then))


_COMPARED = ("group", "row", "baseline", "metric")
_BOUNDS = ("difference", "low", "high")


def _claims(result: KeptResult, shown: RenderedExhibit) -> list[dict[str, Any]]:
    """Each claim of today in its groups: by the kept difference if there is one, else by the seeds of the kept rows."""
    before: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for node in result.exhibit.get("claims", ()):
        before.setdefault(_compared(node), []).append(node)
    known = {name for row in result.exhibit["rows"] for name in row["columns"]}
    found = []
    for evaluated in evaluate_claims(shown):
        node = claim_json(evaluated)
        same = sorted(before.get(_compared(node), ()), key=lambda one: one.get("value") != node["value"])
        if not same and node["metric"] not in known and shown.exhibit.column(node["metric"]).relative is None:
            raise KeptResultError(
                f"{result.experiment}: no kept column is {node['metric']!r}, which the claim {node['statement']!r} "
                f"needs. Run it again: `{result.command}`."
            )
        found.append({**node, **_moved(same[0], evaluated.claim)} if same else node)
    return found


def _compared(node: Mapping[str, Any]) -> tuple[str, ...]:
    """What a claim compares; what it asks of the difference is left out."""
    return tuple(str(node.get(key) or "") for key in _COMPARED)


def _moved(kept: Mapping[str, Any], claim: Claim) -> dict[str, Any]:
    """What was measured of the same comparison. For another number its bounds move, for another margin its status."""
    same = {key: kept.get(key) for key in ("status", "standard_error", "basis", *_BOUNDS)}
    if kept.get("low") is None:
        return same
    bounds = {key: kept[key] + (kept.get("value") or 0.0) - (claim.value or 0.0) for key in _BOUNDS}
    return {**same, **bounds, "status": claim_status(claim, bounds["low"], bounds["high"])}
