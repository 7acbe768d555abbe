"""An exhibit's figure: ours as lines with intervals, reported as hollow markers.

From the rows of an exhibit to the points of its figure: ours and what the paper reports.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.report import figures
from pipeline.report.exhibit.estimate import Estimate
from pipeline.report.exhibit.rows import Cell, ExhibitRow, RenderedExhibit, fill_template, template_fields
from pipeline.report.exhibit.schema import ExhibitFigure
from pipeline.report.figures import COLOURS, TEXT_COLOUR

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class PlotPoint:
    """A point; `x` is a number, or the name of a category; `low` and `high` bound `y`; `label` stands beside it."""

    x: float | str
    y: float
    low: float
    high: float
    label: str = ""


@dataclass(frozen=True)
class Panel:
    """One `y` against x: points by the name of their line, in the rows' order."""

    y: str
    measured: Mapping[str, list[PlotPoint]]
    reported: Mapping[str, list[PlotPoint]]

    @property
    def categories(self) -> list[str] | None:
        """The names on the x axis in their order; None where x is a number everywhere."""
        marks = [mark for marks in (*self.measured.values(), *self.reported.values()) for mark in marks]
        if all(isinstance(mark.x, float | int) for mark in marks):
            return None
        return list(dict.fromkeys(str(mark.x) for mark in marks))


def build_panels(shown: RenderedExhibit, figure: ExhibitFigure) -> list[Panel]:
    """A panel for each y of which something of ours is known."""
    found = [_build_panel(shown, figure, y) for y in figure.panels]
    return [panel for panel in found if panel.measured]


def _build_panel(shown: RenderedExhibit, figure: ExhibitFigure, y: str) -> Panel:
    ours: dict[str, list[PlotPoint]] = {}
    theirs: dict[str, list[PlotPoint]] = {}
    for line in shown.rows:
        name, x = _series_name(shown, figure, line), _x_value(shown, figure, line)
        if (mark := _measured_point(shown, figure, line, y, x)) is not None:
            ours.setdefault(name, []).append(mark)
        if (mark := _reported_point(shown, figure, line, y, x)) is not None:
            theirs.setdefault(name, []).append(mark)
    return Panel(y, ours, theirs)


def _measured_point(
    shown: RenderedExhibit, figure: ExhibitFigure, line: ExhibitRow, y: str, x: float | str | None
) -> PlotPoint | None:
    cell = shown.measured_cell(line, shown.exhibit.column(y))
    if not isinstance(cell, Estimate) or x is None:
        return None
    interval = cell.interval
    low, high = (interval.low, interval.high) if interval else cell.seed_range or (cell.value, cell.value)
    return PlotPoint(x, cell.value, low, high, fill_template(figure.point_labels, _choices(line)))


def _reported_point(
    shown: RenderedExhibit, figure: ExhibitFigure, line: ExhibitRow, y: str, measured_x: float | str | None
) -> PlotPoint | None:
    """Numbers alone; a text ("about 20") has no place on an axis of numbers."""
    value, x = shown.reported_value(line, y), measured_x if "{" in figure.x else shown.reported_value(line, figure.x)
    if isinstance(value, str) or value is None or x is None or (isinstance(x, str) and not isinstance(measured_x, str)):
        return None
    return PlotPoint(x, value, value, value)


def _x_value(shown: RenderedExhibit, figure: ExhibitFigure, line: ExhibitRow) -> float | str | None:
    if "{" in figure.x:
        known = _choices(line).keys() >= set(template_fields(figure.x))
        return _number(fill_template(figure.x, _choices(line))) if known else None
    return _cell_value(shown.measured_cell(line, shown.exhibit.column(figure.x)))


def _series_name(shown: RenderedExhibit, figure: ExhibitFigure, line: ExhibitRow) -> str:
    if "{" in figure.series:
        return fill_template(figure.series, _choices(line)) or "ours"
    return str(_cell_value(shown.measured_cell(line, shown.exhibit.column(figure.series))))


def _choices(line: ExhibitRow) -> Mapping[str, str]:
    return {**line.choices, "row": line.label, "group": line.group}


def _cell_value(cell: Cell) -> float | str | None:
    return cell.value if isinstance(cell, Estimate) else cell


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def draw_exhibit(shown: RenderedExhibit, path: Path) -> Path | None:
    """The figure; None where the exhibit declares none, or nothing of ours is known."""
    figure = shown.exhibit.figure
    found = build_panels(shown, figure) if figure else []
    if figure is None or not found:
        return None
    sheet = figures.create_figure(4.8 * max(1.4, len(found)), 3.9)
    for place, panel in enumerate(found, 1):
        axes = sheet.add_subplot(1, len(found), place)
        _draw_panel(axes, panel)
        figures.style_axes(axes, figure.x.strip("{}"), panel.y)
        _set_log_scales(axes, figure, panel)
    handles, labels = _legend(sheet.axes)
    sheet.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False, fontsize=8.5)
    return figures.save_figure(sheet, path, shown.exhibit.title)


def _draw_panel(axes: "Axes", panel: Panel) -> None:
    places = panel.categories
    for number, name in enumerate(dict.fromkeys([*panel.measured, *panel.reported])):
        colour = COLOURS[number % len(COLOURS)]
        _draw_measured(axes, panel.measured.get(name, ()), places, colour, name)
        _draw_reported(axes, panel.reported.get(name, ()), places, colour, name)
    if places is not None:
        axes.set_xticks(range(len(places)), places, rotation=20, ha="right")
    axes.margins(x=0.08, y=0.12)


def _draw_measured(
    axes: "Axes", marks: Sequence[PlotPoint], places: Sequence[str] | None, colour: str, name: str
) -> None:
    """Without a line between places that have no distance."""
    xs, ys = _x_positions(marks, places), [mark.y for mark in marks]
    spans = [[max(0.0, mark.y - mark.low) for mark in marks], [max(0.0, mark.high - mark.y) for mark in marks]]
    axes.errorbar(xs, ys, yerr=spans, color=colour, ecolor=colour, elinewidth=1.0, marker="o", markersize=4.5,
                  linewidth=1.4 if places is None else 0.0, capsize=2, label=name)  # fmt: skip
    for x, mark in zip(xs, marks, strict=True):
        axes.annotate(mark.label, (x, mark.y), (6, -11), textcoords="offset points", fontsize=8, color=TEXT_COLOUR)


def _draw_reported(
    axes: "Axes", marks: Sequence[PlotPoint], places: Sequence[str] | None, colour: str, name: str
) -> None:
    if marks:
        axes.plot(_x_positions(marks, places), [mark.y for mark in marks], "o", markerfacecolor="none", markersize=7,
                  markeredgecolor=colour, label=f"{name}, reported")  # fmt: skip


def _x_positions(marks: Sequence[PlotPoint], places: Sequence[str] | None) -> list[float]:
    return [float(mark.x) if places is None else float(places.index(str(mark.x))) for mark in marks]


def _set_log_scales(axes: "Axes", figure: ExhibitFigure, panel: Panel) -> None:
    if figure.log_x and panel.categories is None:
        least = min((abs(float(mark.x)) for marks in panel.measured.values() for mark in marks if mark.x), default=1.0)
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
