"""Figures for one column of print: a file for each panel, in one style."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.report import figures
from pipeline.report.exhibit.plot import build_panels, panels_figure
from pipeline.report.exhibit.rows import RenderedExhibit
from pipeline.report.export.tables import metric_column
from pipeline.report.figure_look import PRINT
from pipeline.report.figures import TradeoffPoint
from pipeline.report.records import Records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH_IN = PRINT.column_in or 0.0
_HEIGHT_IN = 2.4

NamedFigure = tuple[str, str, "Figure"]
"""(name of its files, title, figure)."""


def exhibit_figures(shown: RenderedExhibit, name: str) -> Iterator[NamedFigure]:
    """A figure for each panel that the exhibit declares and that has a measured point."""
    figure = shown.exhibit.figure
    panels = build_panels(shown, figure) if figure else []
    for panel in panels:
        own = name if len(panels) == 1 else f"{name}-{_slug(panel.y)}"
        assert figure is not None
        drawn = panels_figure(shown, figure, [panel], (WIDTH_IN, _HEIGHT_IN), PRINT)
        yield own, f"{shown.exhibit.title}: {panel.y}", drawn


def tradeoff_figures(points: Sequence[TradeoffPoint], metric: str) -> Iterator[NamedFigure]:
    """Quality against each thing that it costs; none for fewer than two jobs with a quality."""
    for key in figures.tradeoff_axes(points) if len(points) > 1 else ():
        drawn = figures.tradeoff_figure(points, [key], metric, (WIDTH_IN, _HEIGHT_IN), PRINT)
        yield f"tradeoff-{_slug(metric_column(key).name)}", f"{metric} against {figures.TRADEOFF_AXES[key]}", drawn


def latency_figures(records: Records) -> Iterator[NamedFigure]:
    """The distributions of TTFT and TBT of one job."""
    for name in figures.LATENCY_PANELS:
        sheet = figures.create_figure(WIDTH_IN, _HEIGHT_IN)
        figures.draw_latency_panel(sheet.add_subplot(), records, name, PRINT)
        yield f"latency-{_slug(name)}", f"{records.meta.policy}: latency of {len(records.requests)} requests", sheet


def save_figures(found: Sequence[NamedFigure], folder: Path) -> Mapping[str, Path]:
    """Writes each figure as NAME.pdf and NAME.svg; the path of the SVG file by name."""
    return {name: figures.save_figure(figure, folder / f"{name}.svg", title, PRINT) for name, title, figure in found}


def _slug(text: str) -> str:
    """The text in small letters, digits and single dashes; `x` where nothing is left."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
