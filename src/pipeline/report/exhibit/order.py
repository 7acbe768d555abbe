"""The best row of each group of an exhibit, and between which groups another row becomes the best."""

from collections.abc import Iterator
from itertools import pairwise

from pipeline.report.estimate import Estimate
from pipeline.report.exhibit.rows import RenderedExhibit
from pipeline.report.table import format_number


def order_texts(shown: RenderedExhibit) -> tuple[tuple[str, str], ...]:
    """A line for each group, and one for each change; empty for an exhibit without `order`."""
    best = list(_best_rows(shown))
    found = [("best", f"{group or 'all'}: {label} ({_column(shown)} {format_number(value)})")
             for group, label, value in best]  # fmt: skip
    changes = [
        ("change", f"between {before[0]} and {after[0]}: {after[1]} in place of {before[1]}")
        for before, after in pairwise(best)
        if before[1] != after[1]
    ]
    return (*found, *changes)


def _column(shown: RenderedExhibit) -> str:
    assert shown.exhibit.order
    return shown.exhibit.order.column


def _best_rows(shown: RenderedExhibit) -> Iterator[tuple[str, str, float]]:
    """Group, label and value of the best row of each group that has one."""
    order = shown.exhibit.order
    if order is None:
        return
    column = shown.exhibit.column(order.column)
    for group in shown.groups:
        cells = [(row.label, shown.measured_cell(row, column)) for row in shown.rows if row.group == group]
        known = [(cell.value, label) for label, cell in cells if isinstance(cell, Estimate)]
        if known:
            value, label = min(known) if order.better == "lower" else max(known)
            yield group, label, value
