"""Draws an exhibit's figure: measured points as lines with intervals, reported points as hollow markers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.report import figures
from pipeline.report.estimate import Estimate
from pipeline.report.exhibit.rows import Cell, ExhibitRow, RenderedExhibit, fill_template, template_fields
from pipeline.report.exhibit.schema import ExhibitFigure
from pipeline.report.figure_look import SCREEN, FigureLook
from pipeline.report.figures import PlotPoint
from pipeline.report.series_style import SeriesStyle, series_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CHARS_OF_A_COLUMN = 50
"""Names of categories with more characters in all would cover each other in one column of print."""


@dataclass(frozen=True)
class Panel:
    """One column `y` against x: the points of each line by the line's name, in the order of the rows."""

    y: str
    measured: Mapping[str, list[PlotPoint]]
    reported: Mapping[str, list[PlotPoint]]

    @property
    def names(self) -> list[str]:
        """The lines, measured or reported."""
        return list(dict.fromkeys([*self.measured, *self.reported]))

    @property
    def categories(self) -> list[str] | None:
        """The names on the x axis in their order; None if every x is a number."""
        points = [point for line in (*self.measured.values(), *self.reported.values()) for point in line]
        if all(isinstance(point.x, float | int) for point in points):
            return None
        return list(dict.fromkeys(str(point.x) for point in points))


def build_panels(shown: RenderedExhibit, figure: ExhibitFigure) -> list[Panel]:
    """A panel for each y that has a measured point."""
    found = [_build_panel(shown, figure, y) for y in figure.panels]
    return [panel for panel in found if panel.measured]


def _build_panel(shown: RenderedExhibit, figure: ExhibitFigure, y: str) -> Panel:
    measured: dict[str, list[PlotPoint]] = {}
    reported: dict[str, list[PlotPoint]] = {}
    for row in shown.rows:
        name, x = _series_name(shown, figure, row), _x_value(shown, figure, row)
        if point := _measured_point(shown, figure, row, y, x):
            measured.setdefault(name, []).append(point)
        if point := _reported_point(shown, figure, row, y, x):
            reported.setdefault(name, []).append(point)
    return Panel(y, measured, reported)


def _measured_point(
    shown: RenderedExhibit, figure: ExhibitFigure, row: ExhibitRow, y: str, x: float | str | None
) -> PlotPoint | None:
    cell = shown.measured_cell(row, shown.exhibit.column(y))
    if not isinstance(cell, Estimate) or x is None:
        return None
    interval = cell.interval
    low, high = (interval.low, interval.high) if interval else cell.seed_range or (cell.value, cell.value)
    return PlotPoint(x, cell.value, low, high, fill_template(figure.point_labels, _choices(row)))


def _reported_point(
    shown: RenderedExhibit, figure: ExhibitFigure, row: ExhibitRow, y: str, measured_x: float | str | None
) -> PlotPoint | None:
    """None for a text such as "about 20", which has no place on an axis of numbers."""
    value, x = shown.reported_value(row, y), measured_x if "{" in figure.x else shown.reported_value(row, figure.x)
    if isinstance(value, str) or value is None or x is None or (isinstance(x, str) and not isinstance(measured_x, str)):
        return None
    return PlotPoint(x, value, value, value)


def _x_value(shown: RenderedExhibit, figure: ExhibitFigure, row: ExhibitRow) -> float | str | None:
    if "{" in figure.x:
        known = _choices(row).keys() >= set(template_fields(figure.x))
        return _number(fill_template(figure.x, _choices(row))) if known else None
    return _cell_value(shown.measured_cell(row, shown.exhibit.column(figure.x)))


def _series_name(shown: RenderedExhibit, figure: ExhibitFigure, row: ExhibitRow) -> str:
    if "{" in figure.series:
        return fill_template(figure.series, _choices(row)) or "ours"
    return str(_cell_value(shown.measured_cell(row, shown.exhibit.column(figure.series))))


def _choices(row: ExhibitRow) -> Mapping[str, str]:
    return {**row.choices, "row": row.label, "group": row.group}


def _cell_value(cell: Cell) -> float | str | None:
    return cell.value if isinstance(cell, Estimate) else cell


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def draw_exhibit(shown: RenderedExhibit, path: Path) -> Path | None:
    """Saves the figure; None if the exhibit declares none, or has no measured point."""
    figure = shown.exhibit.figure
    found = build_panels(shown, figure) if figure else []
    if figure is None or not found:
        return None
    sheet = panels_figure(shown, figure, found, (4.8 * max(1.4, len(found)), 3.9))
    return figures.save_figure(sheet, path, shown.exhibit.title)


def panels_figure(
    shown: RenderedExhibit, figure: ExhibitFigure, panels: Sequence[Panel], size: tuple[float, float],
    look: FigureLook = SCREEN,
) -> "Figure":  # fmt: skip
    """The panels side by side on a sheet of this size in inches, with one legend."""
    styles = series_styles(_policies(shown, figure, [name for one in panels for name in one.names]), look.colours)
    sheet = figures.create_figure(*size)
    for place, panel in enumerate(panels, 1):
        axes = sheet.add_subplot(1, len(panels), place)
        _draw_panel(axes, panel, styles, look)
        figures.style_axes(axes, figure.x.strip("{}"), panel.y, look)
        _set_log_scales(axes, figure, panel)
    figures.add_legend(sheet, look)
    return sheet


def _policies(shown: RenderedExhibit, figure: ExhibitFigure, names: Sequence[str]) -> dict[str, str]:
    """The policy of each line; "" for a line of several policies, or of none."""
    found: dict[str, set[str]] = {name: set() for name in names}
    for row in shown.rows:
        found.get(_series_name(shown, figure, row), set()).add(row.choices.get("policy", ""))
    return {name: next(iter(own)) if len(own) == 1 else "" for name, own in found.items()}


def _draw_panel(axes: "Axes", panel: Panel, styles: Mapping[str, SeriesStyle], look: FigureLook) -> None:
    """Points of categories are not connected."""
    categories = panel.categories
    placed = []
    for name in panel.names:
        style = styles[name]
        measured, reported = panel.measured.get(name, ()), panel.reported.get(name, ())
        xs, line = _x_positions(measured, categories), 1.4 if categories is None else 0.0
        figures.draw_points(axes, xs, measured, style, name, look.marker_pt, line)
        placed += [(x, point, style.colour) for x, point in zip(xs, measured, strict=True)]
        if reported:
            axes.plot(_x_positions(reported, categories), [point.y for point in reported], style.marker,
                      markerfacecolor="none", markersize=look.marker_pt + 2.5, markeredgecolor=style.colour,
                      label=name + figures.REPORTED)  # fmt: skip
    figures.label_points(axes, placed, look)
    if categories is not None:
        crowded = look.column_in is not None and sum(map(len, categories)) > _CHARS_OF_A_COLUMN
        axes.set_xticks(range(len(categories)), categories, rotation=60 if crowded else 20, ha="right")
    axes.margins(x=0.08, y=0.12)


def _x_positions(points: Sequence[PlotPoint], categories: Sequence[str] | None) -> list[float]:
    return [float(point.x) if categories is None else float(categories.index(str(point.x))) for point in points]


def _set_log_scales(axes: "Axes", figure: ExhibitFigure, panel: Panel) -> None:
    """Logarithmic scales; linear below the least value where one has no place on a logarithmic scale."""
    if figure.log_x and panel.categories is None:
        least = _least(float(point.x) for points in panel.measured.values() for point in points)
        axes.set_xscale("symlog", linthresh=least) if axes.dataLim.x0 <= 0 else axes.set_xscale("log")
    if figure.log_y:
        ys = [point.y for line in (*panel.measured.values(), *panel.reported.values()) for point in line]
        axes.set_yscale("symlog", linthresh=_least(ys)) if min(ys) <= 0 else axes.set_yscale("log")


def _least(values: Iterable[float]) -> float:
    """The least distance from 0 of those that are not 0."""
    return min((abs(value) for value in values if value), default=1.0)
