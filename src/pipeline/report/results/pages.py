"""Writes the tables of docs from kept results; docs/claims.md is in claims_page.py.

A page of docs marks the place of a table:

    <!-- result: synera/table4
    columns: quality; TBT, ms
    rows: edge_centric; synera
    groups: 7b_70b
    -->
    ...what is written here...
    <!-- end of result -->

The marks begin their lines. Without `columns`, `rows` or `groups` all are shown; `spread: groups` with one column makes
a line of each label and a column of each group; `hide: groups` leaves out the column of groups. What is between the
marks is not written by hand.
"""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from pipeline.artifacts.environment import DIRTY
from pipeline.errors import UserError
from pipeline.report.results.kept import KeptResult
from pipeline.report.table import shared_decimals

_MARK = re.compile(
    r"^(<!-- result: (?P<name>\S+)\s*\n?(?P<options>.*?)-->\n).*?(<!-- end of result -->)", re.DOTALL | re.MULTILINE
)
_OPTIONS = ("columns", "rows", "groups", "spread", "hide")


class MarkError(UserError):
    """A mark in docs names something that the kept result does not have."""


@dataclass(frozen=True)
class _Selection:
    """What a mark shows; empty: all."""

    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    spread: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "_Selection":
        lines = text.strip().splitlines()
        if bare := [line for line in lines if line.strip() and ":" not in line]:
            raise MarkError(f"a result's mark in docs has the line {bare[0]!r}; NAME: VALUES is wanted.")
        given = dict(line.split(":", 1) for line in lines if line.strip())
        values = {key.strip(): tuple(word.strip() for word in value.split(";")) for key, value in given.items()}
        if values.keys() - set(_OPTIONS):
            raise MarkError(f"a result's mark in docs has {sorted(values)}; allowed are {', '.join(_OPTIONS)}.")
        spread, columns = values.get("spread", ()), values.get("columns", ())
        if spread and (spread != ("groups",) or len(columns) != 1):
            raise MarkError("a result's mark in docs can spread groups alone, and one column of them.")
        if values.get("hide", ()) not in ((), ("groups",)):
            raise MarkError("a result's mark in docs can hide groups alone.")
        return cls(**values)


def written_page(text: str, results: Mapping[str, KeptResult], where: str) -> str:
    """The page's text with every marked table written anew. Raises MarkError."""

    def table(found: re.Match[str]) -> str:
        name = found["name"]
        lines = result_lines(name, results.get(name), _Selection.parse(found["options"]), where)
        return found[1] + "\n".join(lines) + "\n" + found[4]

    return _MARK.sub(table, text)


def marked_results(text: str) -> list[str]:
    """The experiments of the page's marks."""
    return [found["name"] for found in _MARK.finditer(text)]


def result_lines(name: str, result: KeptResult | None, selection: _Selection, where: str) -> list[str]:
    """The Markdown table of a kept result and what it rests on."""
    if result is None:
        return [f"No result is kept: `python -m pipeline +experiment={name}`."]
    rows = _with_counts(result.exhibit["rows"])
    columns = list(selection.columns or rows[0]["columns"])
    missing = [one for one in columns if one not in rows[0]["columns"]]
    if missing:
        raise MarkError(f"{where}: {name} has no column {missing[0]!r}; it has {', '.join(rows[0]['columns'])}.")
    for kind, asked in (("row", selection.rows), ("group", selection.groups)):
        known = list(dict.fromkeys(row.get(kind, "") for row in rows))
        if absent := [one for one in asked if one not in known]:
            raise MarkError(f"{where}: {name} has no {kind} {absent[0]!r}; it has {', '.join(known)}.")
    shown = [row for row in rows if _is_selected(row, selection)]
    if not shown:
        raise MarkError(f"{where}: {name} has none of its rows in the groups that its mark names.")
    lines = (
        _spread_lines(shown, columns[0])
        if selection.spread
        else _row_lines(shown, columns, hides_groups=bool(selection.hide))
    )
    notes = dict.fromkeys(f"{row['row']}: {row['hypothetical']}." for row in shown if row.get("hypothetical"))
    return [*lines, "", *notes, basis_line(result)]


def _with_counts(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows, with the numbers of a column as integers where all are whole and none has an interval."""
    cells: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        for name, column in row["columns"].items():
            if isinstance(column.get("measured"), Mapping):
                cells.setdefault(name, []).append(column["measured"])
    counts = {name for name, own in cells.items() if all(_is_whole(cell) for cell in own)}
    return [
        {**row, "columns": {name: _counted(name, one, counts) for name, one in row["columns"].items()}} for row in rows
    ]


def _is_whole(cell: Mapping[str, Any]) -> bool:
    return "low" not in cell and float(cell["value"]).is_integer()


def _counted(name: str, column: Mapping[str, Any], counts: Set[str]) -> Mapping[str, Any]:
    cell = column.get("measured")
    if name not in counts or not isinstance(cell, Mapping):
        return column
    return {**column, "measured": {**cell, "value": int(cell["value"])}}


def _row_lines(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, hides_groups: bool) -> list[str]:
    """A line for each row, with its group where there are groups."""
    grouped = any(row.get("group") for row in rows) and not hides_groups
    labels = [[*([row.get("group", "")] if grouped else []), row["row"]] for row in rows]
    cells = [[format_measured(row["columns"].get(column, {})) for column in columns] for row in rows]
    heads = [*(["group"] if grouped else []), "", *columns]
    return _markdown([heads, *(own + found for own, found in zip(labels, cells, strict=True))], len(columns))


def _spread_lines(rows: Sequence[Mapping[str, Any]], column: str) -> list[str]:
    """A line for each label, with the column's cell in every group."""
    groups = list(dict.fromkeys(row.get("group", "") for row in rows))
    cells = {(row["row"], row.get("group", "")): format_measured(row["columns"].get(column, {})) for row in rows}
    labels = list(dict.fromkeys(row["row"] for row in rows))
    lines = [[label, *(cells.get((label, group), "-") for group in groups)] for label in labels]
    return _markdown([[column, *groups], *lines], len(groups))


def _markdown(lines: Sequence[Sequence[str]], num_columns: int) -> list[str]:
    """The first line is the heading; the last `num_columns` are numbers."""
    rule = "|" + "---|" * (len(lines[0]) - num_columns) + "---:|" * num_columns
    head, *rest = (f"| {' | '.join(map(escaped, cells))} |" for cells in lines)
    return [head, rule, *rest]


def _is_selected(row: Mapping[str, Any], selection: _Selection) -> bool:
    return (not selection.rows or row["row"] in selection.rows) and (
        not selection.groups or row.get("group", "") in selection.groups
    )


def format_measured(column: Mapping[str, Any]) -> str:
    """`ours [low, high]`, and what is reported in parentheses."""
    cell, reported = column.get("measured"), column.get("reported")
    said = f" (reported {reported})" if reported is not None else ""
    if not isinstance(cell, Mapping):
        return f"{'-' if cell is None else cell}{said}"
    if isinstance(cell["value"], int):
        return f"{cell['value']:,}{said}"
    known = [round(cell[key], 9) + 0.0 for key in ("value", "low", "high") if key in cell]  # no minus before zero
    own, *bounds = (f"{number:,.{shared_decimals(known)}f}" for number in known)
    return f"{own} [{', '.join(bounds)}]{said}" if bounds else f"{own}{said}"


def basis_line(result: KeptResult) -> str:
    """What the table rests on: sample, seeds, command, date, revision, and what has changed since."""
    rows = result.exhibit["rows"]
    requests, prompts = (max((row.get(key, 0) for row in rows), default=0) for key in ("requests", "prompts"))
    sample = f"{requests:,} requests a row, {prompts:,} different prompts a seed; " if requests and prompts else ""
    seeds = _seeds(rows)
    named = f"seeds {', '.join(seeds)}; " if len(seeds) > 1 else ""
    revision = ", ".join(dict.fromkeys(map(_short_revision, result.revisions))) or "unknown"
    changes = result.changes()
    stale = f" **Not run again since: {'; '.join(changes)}.**" if changes else ""
    intervals = "Intervals: 95 %. " if any("low" in cell for cell in _measured_cells(rows)) else ""
    return f"{intervals}{sample}{named}`{result.command}`, {result.date}, revision {revision}.{stale}"


def _short_revision(revision: str) -> str:
    """`d68239a`; of a checkout with changes, `d68239a with changes that were not committed`."""
    commit, dirty, _ = revision.partition(DIRTY)
    return commit[:7] + (" with changes that were not committed" if dirty else "")


def _seeds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those of cells that have any; the replicate of a number without seeds has no name."""
    return list(dict.fromkeys(seed for cell in _measured_cells(rows) for seed in cell.get("by_replicate", ()) if seed))


def _measured_cells(rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The cells that are numbers."""
    cells = (column.get("measured") for row in rows for column in row["columns"].values())
    return (cell for cell in cells if isinstance(cell, Mapping))


def escaped(text: str) -> str:
    """As the text of a cell."""
    return str(text).replace("|", "\\|").replace("\n", " ")
