"""An exhibit's figure: ours as lines with intervals, reported as hollow markers.

From the rows of an exhibit to the points of its figure: ours and what the paper reports.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.report import plot_style
from pipeline.report.exhibit.estimate import Estimate
from pipeline.report.exhibit.rows import Cell, Line, Shown, fields, fill
from pipeline.report.exhibit.schema import Figure
from pipeline.report.plot_style import COLOURS, INK

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes


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


def draw(shown: Shown, path: Path) -> Path | None:
    """The figure; None where the exhibit declares none, or nothing of ours is known."""
    figure = shown.exhibit.figure
    found = panels(shown, figure) if figure else []
    if figure is None or not found:
        return None
    sheet = plot_style.blank(4.8 * max(1.4, len(found)), 3.9)
    for place, panel in enumerate(found, 1):
        axes = sheet.add_subplot(1, len(found), place)
        _draw(axes, panel)
        plot_style.label(axes, figure.x.strip("{}"), panel.y)
        _scale(axes, figure, panel)
    handles, labels = _legend(sheet.axes)
    sheet.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False, fontsize=8.5)
    return plot_style.save(sheet, path, shown.exhibit.title)


def _draw(axes: "Axes", panel: Panel) -> None:
    places = panel.places
    for number, name in enumerate(dict.fromkeys([*panel.ours, *panel.reported])):
        colour = COLOURS[number % len(COLOURS)]
        _line(axes, panel.ours.get(name, ()), places, colour, name)
        _hollow(axes, panel.reported.get(name, ()), places, colour, name)
    if places is not None:
        axes.set_xticks(range(len(places)), places, rotation=20, ha="right")
    axes.margins(x=0.08, y=0.12)


def _line(axes: "Axes", marks: Sequence[Mark], places: Sequence[str] | None, colour: str, name: str) -> None:
    """Without a line between places that have no distance."""
    xs, ys = _xs(marks, places), [mark.y for mark in marks]
    spans = [[max(0.0, mark.y - mark.low) for mark in marks], [max(0.0, mark.high - mark.y) for mark in marks]]
    axes.errorbar(xs, ys, yerr=spans, color=colour, ecolor=colour, elinewidth=1.0, marker="o", markersize=4.5,
                  linewidth=1.4 if places is None else 0.0, capsize=2, label=name)  # fmt: skip
    for x, mark in zip(xs, marks, strict=True):
        axes.annotate(mark.text, (x, mark.y), (6, -11), textcoords="offset points", fontsize=8, color=INK)


def _hollow(axes: "Axes", marks: Sequence[Mark], places: Sequence[str] | None, colour: str, name: str) -> None:
    if marks:
        axes.plot(_xs(marks, places), [mark.y for mark in marks], "o", markerfacecolor="none", markersize=7,
                  markeredgecolor=colour, label=f"{name}, reported")  # fmt: skip


def _xs(marks: Sequence[Mark], places: Sequence[str] | None) -> list[float]:
    return [float(mark.x) if places is None else float(places.index(str(mark.x))) for mark in marks]


def _scale(axes: "Axes", figure: Figure, panel: Panel) -> None:
    if figure.log_x and panel.places is None:
        least = min((abs(float(mark.x)) for marks in panel.ours.values() for mark in marks if mark.x), default=1.0)
        axes.set_xscale("symlog", linthresh=least) if axes.dataLim.x0 <= 0 else axes.set_xscale("log")
    if figure.log_y:
        axes.set_yscale("log")


def _legend(panels: Sequence["Axes"]) -> tuple[list["Artist"], list[str]]:
    found: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    ours_first = sorted(found, key=lambda label: label.endswith(", reported"))
    return [found[label] for label in ours_first], ours_first
