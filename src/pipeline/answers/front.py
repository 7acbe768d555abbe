"""The Pareto front of rows, and its picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.answers.rows import Row
from pipeline.report import figures
from pipeline.report.export.tables import metric_column
from pipeline.report.figures import PlotPoint
from pipeline.report.series_style import series_styles
from serving.metrics import definitions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def objective_values(row: Row, objective: Sequence[str]) -> tuple[float, ...]:
    """The row's objectives, all to be minimised; infinite where one is not known."""
    return tuple(row.metrics.get(one, float("inf")) for one in objective)


def pareto_front(values: Sequence[Sequence[float]]) -> list[bool]:
    """True for each point that no other is at least as good as everywhere and better somewhere."""
    return [not any(_dominates(other, one) for other in values) for one in values]


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def front_figure(rows: Sequence[Row], kept: Sequence[Row], objective: tuple[str, str]) -> "Figure":
    """All rows by two objectives, in the colours of their policies; the line is the front of those that are `kept`."""
    sheet = figures.create_figure(6.6, 4.4)
    axes = sheet.add_subplot(1, 1, 1)
    specs = [definitions.find(key) for key in objective]
    scales = [one.scale if one else 1.0 for one in specs]
    for policy, style in series_styles({row.candidate.policy: row.candidate.policy for row in rows}).items():
        points = _points([row for row in rows if row.candidate.policy == policy], objective, scales)
        marks = [PlotPoint(x, y, y, y) for x, y in points]
        figures.draw_points(axes, [x for x, _ in points], marks, style, policy, markersize=5.0, linewidth=0.0)
    known = _points(kept, objective, scales)
    front = sorted(point for point, best in zip(known, pareto_front(known), strict=True) if best)
    axes.step([x for x, _ in front], [y for _, y in front], where="post", color=figures.MUTED_COLOUR, linewidth=1.2)
    x_name, y_name = (metric_column(key).heading for key in objective)
    figures.style_axes(axes, x_name, y_name)
    figures.add_legend(sheet)
    return sheet


def _points(rows: Sequence[Row], objective: Sequence[str], scales: Sequence[float]) -> list[tuple[float, ...]]:
    values = [objective_values(row, objective) for row in rows]
    return [
        tuple(scale * value for scale, value in zip(scales, own, strict=True))
        for own in values
        if all(value < float("inf") for value in own)
    ]
