"""Draws an exhibit's maps: a cell for each row, in the colour of the name that stands in it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.report import figures
from pipeline.report.estimate import Estimate
from pipeline.report.exhibit.rows import Cell, ExhibitRow, RenderedExhibit
from pipeline.report.exhibit.schema import ExhibitMap
from pipeline.report.series_style import series_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIE = " = "
NONE = "none"
"""A cell without a winner has no colour."""
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_TIED_SHARE = 0.42
"""The side of the square of a second name, of its cell's."""


@dataclass(frozen=True)
class MapCell:
    """One cell: its place, its panel, and its names, the best first."""

    x: str
    y: str
    panel: tuple[str, str]
    names: tuple[str, ...]


def draw_maps(shown: RenderedExhibit, path: Path) -> list[Path]:
    """Saves a figure for each column of colours: the first at `path`, the others beside it, by their names."""
    layout = shown.exhibit.map
    if layout is None:
        return []
    found = []
    for number, colour in enumerate(layout.colours):
        cells = list(map_cells(shown, layout, colour))
        own = path.with_stem(f"{path.stem}_{_NOT_IN_NAMES.sub('_', colour.lower())}") if number else path
        found += [_draw_map(cells, layout, f"{shown.exhibit.title}: {colour}", own)] if cells else []
    return found


def map_cells(shown: RenderedExhibit, layout: ExhibitMap, colour: str) -> Iterator[MapCell]:
    """The cells of the rows that have a place and a name."""
    for row in shown.rows:
        x, y, *panel = (_text(shown, row, name) for name in (layout.x, layout.y, layout.panel_row, layout.panel_column))
        names = _text(shown, row, colour)
        if x and y and names:
            yield MapCell(x, y, (panel[0], panel[1]), tuple(names.split(TIE)))


def _text(shown: RenderedExhibit, row: ExhibitRow, column: str) -> str:
    cell: Cell = shown.measured_cell(row, shown.exhibit.column(column))
    return f"{cell.value:g}" if isinstance(cell, Estimate) else cell or ""


def _draw_map(cells: Sequence[MapCell], layout: ExhibitMap, title: str, path: Path) -> Path:
    rows, columns = (list(dict.fromkeys(cell.panel[side] for cell in cells)) for side in (0, 1))
    xs, ys = (sorted({getattr(cell, axis) for cell in cells}, key=float) for axis in ("x", "y"))
    names = list(dict.fromkeys(name for cell in cells for name in cell.names[:2] if name != NONE))
    colours = {name: style.colour for name, style in series_styles({name: name for name in names}).items()}
    sheet = figures.create_figure(1.4 + 1.9 * len(columns), 1.3 + 1.5 * len(rows))
    for place, panel in enumerate((row, column) for row in rows for column in columns):
        axes = sheet.add_subplot(len(rows), len(columns), place + 1)
        _style_panel(axes, xs, ys)
        axes.set_title(", ".join(filter(None, (panel[0], f"{panel[1]} {layout.panel_column}"))), fontsize=8)
        axes.set_xlabel(layout.x if place >= len(columns) * (len(rows) - 1) else "", fontsize=8)
        axes.set_ylabel("" if place % len(columns) else layout.y, fontsize=8)
        for cell in cells:
            if cell.panel == panel:
                _draw_cell(axes, xs.index(cell.x), ys.index(cell.y), [colours.get(name) for name in cell.names[:2]])
    _name_colours(sheet.axes[0], colours)
    figures.add_legend(sheet)
    return figures.save_figure(sheet, path, title)


def _style_panel(axes: "Axes", xs: Sequence[str], ys: Sequence[str]) -> None:
    axes.set_xlim(-0.5, len(xs) - 0.5)
    axes.set_ylim(-0.5, len(ys) - 0.5)
    axes.set_xticks(range(len(xs)), xs)
    axes.set_yticks(range(len(ys)), ys)
    axes.tick_params(labelsize=7, colors=figures.TEXT_COLOUR, length=2)
    axes.spines[["top", "right", "left", "bottom"]].set_color(figures.MUTED_COLOUR)


def _draw_cell(axes: "Axes", x: int, y: int, colours: Sequence[str | None]) -> None:
    """The whole cell in the first colour, a square within it in the second."""
    from matplotlib.patches import Rectangle

    for colour, side in zip(colours, (0.96, _TIED_SHARE), strict=False):
        if colour:
            axes.add_patch(Rectangle((x - side / 2, y - side / 2), side, side, facecolor=colour, edgecolor="white"))


def _name_colours(axes: "Axes", colours: dict[str, str]) -> None:
    """A point outside of the panel for each colour, for the legend."""
    for name, colour in colours.items():
        axes.plot([-9], [-9], "s", color=colour, markersize=8, label=name)
