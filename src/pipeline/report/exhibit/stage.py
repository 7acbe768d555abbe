"""The exhibit of one run: a report stage that shows the rows of another stage.

    stages:
      hits: {_target_: ..., _kind_: profile, ...}     # writes rows.json
      figure:
        _target_: pipeline.report.exhibit.stage.report_exhibit
        _kind_: report
        exhibit: ${exhibit}
        table: ${stage:hits}
    goal: figure

rows.json is `{row: {metric: cell}}`, or `{group: {row: {metric: cell}}}`, with the metrics of the exhibit's columns. A
cell is a number, a text, null, or a list with a number for each prompt, which gets an interval and pairs with lists of
the same length; or `{"by_seed": {seed: number or list}}`, with an interval that covers the seeds too. In a table that
is one replicate of several, such seeds are replicates of their own, such as `3/0`. The cell `why` is a text that says
why a row lacks values, or why they are what they are: it stands behind the table.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.report.estimate import Estimate, estimate_mean, estimate_seeds
from pipeline.report.exhibit.render import write_exhibit
from pipeline.report.exhibit.rows import Cell, ExhibitRow, RenderedExhibit
from pipeline.report.exhibit.schema import Exhibit, full_metric_name
from pipeline.report.prompt_sums import ROWS_FILE
from pipeline.report.table import plain_lines

BY_SEED = "by_seed"
WHY = "why"


class TableError(UserError):
    """A stage left no table that an exhibit can show."""


def report_exhibit(out: Path, *, exhibit: Exhibit, table: Path) -> None:
    """Writes exhibit.txt, exhibit.json, exhibit.csv, figures/exhibit.png and metrics.json.

    Raises TableError where `table` has no rows.json, or one of another shape.
    """
    rows = list(read_rows(table))
    shown = RenderedExhibit.with_reported_rows(exhibit, rows)
    made = write_exhibit(shown, out, out / "figures" / "exhibit.png", list(missing_metric_notes(exhibit, rows)))
    (out / "exhibit.txt").write_text("\n".join(plain_lines(made.parts)) + "\n", encoding="utf-8")
    (out / "metrics.json").write_text(json.dumps(made.metrics, indent=1), encoding="utf-8")


def read_rows(artifact: Path, replicate: str = "") -> Iterator[ExhibitRow]:
    """The rows of a stage's rows.json, whose numbers are those of `replicate`. Raises TableError."""
    path = artifact / ROWS_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise TableError(f"{path} cannot be read as the rows of an exhibit: {problem}.") from problem
    if not _is_table(found):
        raise TableError(f"{path} is no table: {{row: {{column: cell}}}} is wanted, or {{group: {{row: ...}}}}.")
    groups = found if _is_grouped(found) else {"": found}
    for group, own in groups.items():
        for label, cells in own.items():
            found_cells = {
                full_metric_name(name): _cell(value, f"{path}: {label}, {name}", replicate)
                for name, value in cells.items()
                if name != WHY
            }
            yield ExhibitRow(group, label, found_cells, problem=cells.get(WHY))


def _is_table(node: Any) -> bool:
    return isinstance(node, dict) and all(isinstance(value, dict) and BY_SEED not in value for value in node.values())


def _is_grouped(table: Mapping[str, Any]) -> bool:
    return all(_is_table(rows) and rows for rows in table.values())


def _cell(value: Any, where: str, replicate: str) -> Cell:
    if value is None or isinstance(value, str):
        return value
    try:
        return _by_seed(value[BY_SEED], replicate) if isinstance(value, dict) else _estimate(value, replicate)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as problem:
        raise TableError(
            f"{where} is {value!r}; a number, a text, null, a list of numbers, or these by_seed are wanted."
        ) from problem


def _by_seed(cells: Mapping[str, Any], replicate: str) -> Estimate:
    if not cells:
        raise ValueError("no seed")
    cells = {f"{replicate}/{seed}": value for seed, value in cells.items()} if replicate else cells
    if not any(isinstance(value, list) for value in cells.values()):
        return estimate_seeds({str(seed): float(value) for seed, value in cells.items()})
    found = [_estimate(value, str(seed)) for seed, value in cells.items()]
    values = {key: number for one in found for key, number in one.values.items()}
    return Estimate(values, {key: draws for one in found for key, draws in one.resamples.items()})


def _estimate(value: Any, seed: str) -> Estimate:
    if isinstance(value, list):
        return estimate_mean([float(one) for one in value], seed)
    return Estimate({seed: float(value)})


def missing_metric_notes(exhibit: Exhibit, rows: Sequence[ExhibitRow]) -> Iterator[str]:
    """Metrics of columns that no row has, often by a spelling mistake."""
    known = {metric for row in rows for metric in row.measured}
    for column in exhibit.columns:
        if known and column.metric_name not in known:
            yield f"no row has {column.metric_name!r}; there are {', '.join(sorted(known))}"
