"""From the rows of an exhibit to the points of its figure: ours and what the paper reports."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.report.exhibit.estimate import Estimate
from pipeline.report.exhibit.label import fields, fill
from pipeline.report.exhibit.rows import Cell, Line, Shown
from pipeline.report.exhibit.schema import Figure


@dataclass(frozen=True)
class Mark:
    """A point; `x` is a number, or the name of a place on the axis; `low` and `high` bound `y`; `text` is beside it."""

    x: float | str
    y: float
    low: float
    high: float
    text: str = ""


@dataclass(frozen=True)
class Panel:
    """One `y` against x: points by the name of their line, in the rows' order."""

    y: str
    ours: Mapping[str, list[Mark]]
    reported: Mapping[str, list[Mark]]

    @property
    def places(self) -> list[str] | None:
        """The names on the x axis in their order; None where x is a number everywhere."""
        marks = [mark for marks in (*self.ours.values(), *self.reported.values()) for mark in marks]
        if all(isinstance(mark.x, float | int) for mark in marks):
            return None
        return list(dict.fromkeys(str(mark.x) for mark in marks))


def panels(shown: Shown, figure: Figure) -> list[Panel]:
    """A panel for each y of which something of ours is known."""
    found = [_panel(shown, figure, y) for y in figure.panels]
    return [panel for panel in found if panel.ours]


def _panel(shown: Shown, figure: Figure, y: str) -> Panel:
    ours: dict[str, list[Mark]] = {}
    theirs: dict[str, list[Mark]] = {}
    for line in shown.lines:
        name, x = _name(shown, figure, line), _x(shown, figure, line)
        if (mark := _ours(shown, figure, line, y, x)) is not None:
            ours.setdefault(name, []).append(mark)
        if (mark := _reported(shown, figure, line, y, x)) is not None:
            theirs.setdefault(name, []).append(mark)
    return Panel(y, ours, theirs)


def _ours(shown: Shown, figure: Figure, line: Line, y: str, x: float | str | None) -> Mark | None:
    cell = shown.ours(line, shown.exhibit.column(y))
    if not isinstance(cell, Estimate) or x is None:
        return None
    interval = cell.interval
    low, high = (interval.low, interval.high) if interval else cell.spread or (cell.value, cell.value)
    return Mark(x, cell.value, low, high, fill(figure.marks, _choices(line)))


def _reported(shown: Shown, figure: Figure, line: Line, y: str, ours: float | str | None) -> Mark | None:
    """Numbers alone; a text ("about 20") has no place on an axis of numbers."""
    value, x = shown.reported(line, y), ours if "{" in figure.x else shown.reported(line, figure.x)
    if isinstance(value, str) or value is None or x is None or (isinstance(x, str) and not isinstance(ours, str)):
        return None
    return Mark(x, value, value, value)


def _x(shown: Shown, figure: Figure, line: Line) -> float | str | None:
    if "{" in figure.x:
        known = _choices(line).keys() >= set(fields(figure.x))
        return _number(fill(figure.x, _choices(line))) if known else None
    return _plain(shown.ours(line, shown.exhibit.column(figure.x)))


def _name(shown: Shown, figure: Figure, line: Line) -> str:
    if "{" in figure.lines:
        return fill(figure.lines, _choices(line)) or "ours"
    return str(_plain(shown.ours(line, shown.exhibit.column(figure.lines))))


def _choices(line: Line) -> Mapping[str, str]:
    return {**line.choices, "row": line.label, "group": line.group}


def _plain(cell: Cell) -> float | str | None:
    return cell.value if isinstance(cell, Estimate) else cell


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
