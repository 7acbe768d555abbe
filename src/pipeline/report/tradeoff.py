"""Quality against what it costs, over the jobs of a sweep."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.report import plot_style
from pipeline.report.plot_style import COLOURS, TEXT_COLOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class TradeoffPoint:
    """One job of a sweep; `low` and `high` bound its mean quality. Jobs of one `group` are one line."""

    group: str
    label: str
    quality: float
    low: float | None = None
    high: float | None = None
    token_share: float | None = None
    tbt_s: float | None = None
    cost_s: float | None = None


_AXES = (
    ("token_share", 100.0, "tokens that the cloud judged or wrote, %"),
    ("tbt_s", 1000.0, "mean time between tokens, ms"),
    ("cost_s", 1000.0, "cloud cost per token, ms (W = tokens verified)"),
)


def draw_tradeoff(points: Sequence[TradeoffPoint], path: Path, metric: str = "quality") -> Path:
    """Quality against the share offloaded, the time between tokens and the cloud's cost; an axis without data is left
    out. Raises ValueError without any point.
    """
    if not points:
        raise ValueError("a trade-off needs one complete job with a quality at least.")
    axes = [axis for axis in _AXES if any(getattr(point, axis[0]) is not None for point in points)] or [_AXES[0]]
    figure = plot_style.create_figure(4.4 * len(axes), 4.0)
    first = None
    for column, (name, scale, title) in enumerate(axes):
        first = panel = figure.add_subplot(1, len(axes), column + 1, sharey=first)
        _draw_quality_against(panel, points, name, scale)
        plot_style.style_axes(panel, title, metric if column == 0 else "")
        panel.margins(x=0.12, y=0.12)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=min(6, len(labels)), frameon=False, fontsize=9)
    return plot_style.save_figure(figure, path, f"{metric} and what it costs (bars: 95 % intervals)")


def _draw_quality_against(axes: "Axes", points: Sequence[TradeoffPoint], name: str, scale: float) -> None:
    groups = list(dict.fromkeys(point.group for point in points))
    for group, colour in zip(groups, COLOURS * (1 + len(groups) // len(COLOURS)), strict=False):
        known = [point for point in points if point.group == group and getattr(point, name) is not None]
        xs, ys = [scale * getattr(point, name) for point in known], [point.quality for point in known]
        spans = [[_error_below(point) for point in known], [_error_above(point) for point in known]]
        axes.errorbar(xs, ys, yerr=spans, color=colour, ecolor=colour, elinewidth=1.0, marker="o", markersize=5.5,
                      linewidth=1.4, capsize=2, label=group)  # fmt: skip
        for x, point in zip(xs, known, strict=True):
            axes.annotate(
                point.label, (x, point.quality), (6, -11), textcoords="offset points", fontsize=8, color=TEXT_COLOUR
            )


def _error_below(point: TradeoffPoint) -> float:
    return 0.0 if point.low is None else max(0.0, point.quality - point.low)


def _error_above(point: TradeoffPoint) -> float:
    return 0.0 if point.high is None else max(0.0, point.high - point.quality)
