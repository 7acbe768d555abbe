"""exhibit.json, exhibit.csv, and the numbers that MLflow is told."""

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.artifacts import atomic
from pipeline.report.exhibit.estimate import Estimate
from pipeline.report.exhibit.rows import Cell, Line, Shown
from pipeline.report.exhibit.schema import Column
from pipeline.report.exhibit.verdict import Verdict, tally

_FORBIDDEN = re.compile(r"[^\w\-. :/]")


def write(shown: Shown, verdicts: Sequence[Verdict], folder: Path) -> list[Path]:
    """Both files; their paths."""
    node = {
        "title": shown.exhibit.title,
        "rows": [_node(shown, line) for line in shown.lines],
        "claims": [_claim(verdict) for verdict in verdicts],
        "differs": list(shown.exhibit.differs),
    }
    as_json, as_csv = folder / "exhibit.json", folder / "exhibit.csv"
    atomic.replace(as_json, json.dumps(node, indent=1, ensure_ascii=False) + "\n")
    atomic.replace(as_csv, _csv(shown))
    return [as_json, as_csv]


def metrics(shown: Shown, verdicts: Sequence[Verdict]) -> dict[str, float]:
    """`exhibit/ROW/COLUMN` of every number of ours, and how many claims hold."""
    found = {f"exhibit/claims {result}": float(n) for result, n in tally(verdicts).items()}
    for line, column, cell in _all(shown):
        if isinstance(cell, Estimate):
            place = "/".join(filter(None, ("exhibit", line.group, line.label, column.name)))
            found[_FORBIDDEN.sub("_", place)] = cell.value
    return found


def _all(shown: Shown) -> Iterator[tuple[Line, Column, Cell]]:
    for line in shown.lines:
        for column in shown.exhibit.columns:
            yield line, column, shown.ours(line, column)


def _node(shown: Shown, line: Line) -> dict[str, Any]:
    columns = {
        column.name: {"reported": shown.reported(line, column.name), "ours": _cell(shown.ours(line, column))}
        for column in shown.exhibit.columns
    }
    return {"group": line.group, "row": line.label, "problem": line.problem, "columns": columns}


def _cell(cell: Cell) -> Any:
    if not isinstance(cell, Estimate):
        return cell
    interval = cell.interval
    bounds = {"low": interval.low, "high": interval.high} if interval else {}
    return {"value": cell.value, **bounds, "by_replicate": dict(cell.values)}


def _claim(verdict: Verdict) -> dict[str, Any]:
    low, high = verdict.bounds or (None, None)
    difference = verdict.difference.value if verdict.difference else None
    return {
        "says": verdict.claim.says, "group": verdict.group, "result": verdict.result, "difference": difference,
        "low": low, "high": high, "basis": verdict.basis,
    }  # fmt: skip


def _csv(shown: Shown) -> str:
    records = [_record(shown, line) for line in shown.lines]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(key for one in records for key in one)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _record(shown: Shown, line: Line) -> dict[str, object]:
    record: dict[str, object] = {"group": line.group, "row": line.label, "problem": line.problem}
    for column in shown.exhibit.columns:
        cell = shown.ours(line, column)
        interval = cell.interval if isinstance(cell, Estimate) else None
        record[f"{column.name} reported"] = shown.reported(line, column.name)
        record[column.name] = cell.value if isinstance(cell, Estimate) else cell
        record[f"{column.name} low"] = interval.low if interval else None
        record[f"{column.name} high"] = interval.high if interval else None
    return record
