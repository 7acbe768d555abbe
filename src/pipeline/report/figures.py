"""Figures: their common look, latency and time line of a job, and the trade-off between the jobs of a sweep.

They are saved as PNG, PDF and SVG; the same content always gives the same bytes.
"""

import logging
import textwrap
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.report.figure_look import SCREEN, FigureLook
from pipeline.report.records import Records, RequestRecord, TimelineSpan
from pipeline.report.series_style import SeriesStyle, series_styles
from pipeline.report.statistics import percentile
from serving.metrics import definitions

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEXT_COLOUR, MUTED_COLOUR = "#1f2933", "#9aa5b1"
REPORTED = ", reported"
"""The end of a series' name with a paper's values, which stand last in legends."""
_TITLE_PT = 11.0
_MAX_POINT_LABELS = 16
_METADATA: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None}, "pdf": {"CreationDate": None, "Creator": None, "Producer": None}, "svg": {"Date": None},
}  # fmt: skip
"""What matplotlib would write of itself and of the time."""


def create_figure(width: float, height: float) -> "Figure":
    """An empty figure; inches. It draws without a display and shares no state with other figures."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def style_axes(axes: "Axes", x: str, y: str, look: FigureLook = SCREEN) -> None:
    """Name both axes and leave only what helps to read them."""
    axes.set_xlabel(x, fontsize=look.label_pt, color=TEXT_COLOUR)
    axes.set_ylabel(y, fontsize=look.label_pt, color=TEXT_COLOUR)
    axes.tick_params(labelsize=look.tick_pt, colors=TEXT_COLOUR, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED_COLOUR)
    axes.grid(visible=True, color="#e4e7eb", linewidth=0.7)
    axes.set_axisbelow(True)


def save_figure(figure: "Figure", path: Path, title: str, look: FigureLook = SCREEN) -> Path:
    """Writes the figure as the look's kinds of files, beside one another: `path` is one of them.

    On a screen its title, which is wrapped, stands above it. PDF files hold their fonts, SVG files hold outlines.
    """
    from matplotlib import rc_context

    if look.titled:
        _set_title(figure, title)
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # a PDF's fonts are a page of its remarks
    with rc_context({"svg.hashsalt": "figure", "svg.fonttype": "path", "pdf.fonttype": 42}):
        for kind, metadata in _METADATA.items():
            if kind in look.kinds:
                figure.savefig(path.with_suffix(f".{kind}"), dpi=130, metadata=dict(metadata))
    return path


def _set_title(figure: "Figure", title: str) -> None:
    width_pt = 72 * float(figure.get_size_inches()[0]) - 20
    chars = max(20, int(width_pt / _width_pt(title, _TITLE_PT) * len(title)))
    text = "\n".join(textwrap.wrap(title, chars, break_long_words=False))
    figure.suptitle(text, x=0.01, ha="left", fontsize=_TITLE_PT, color=TEXT_COLOUR)


def add_legend(figure: "Figure", look: FigureLook = SCREEN) -> None:
    """One legend for all panels, below them, in as many columns as fit; labels wider than the figure lose their middle.
    None without labels.

    The figure grows by the legend's further rows, and its panels with many series.
    """
    found: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if not found:
        return
    names = sorted(found, key=lambda label: label.endswith(REPORTED))
    width, height = map(float, figure.get_size_inches())
    room_pt = 72 * width - look.legend_margin_em * look.legend_pt
    labels = [_shortened(label, room_pt, look) for label in names]
    column_pt = max(_width_pt(label, look.legend_pt) for label in labels) + look.handle_pt
    rows = ceil(len(labels) / max(1, int(room_pt / column_pt)))
    crowd = 0.06 * min(32, max(0, len(labels) - 8))
    figure.set_size_inches(width, height + crowd + (rows - 1) * 1.5 * look.legend_pt / 72)
    figure.legend(
        [found[name] for name in names], labels, loc="outside lower center", ncols=ceil(len(labels) / rows),
        frameon=False, fontsize=look.legend_pt, columnspacing=look.legend_gap_em,
        handlelength=look.handle_em,
    )  # fmt: skip


def _shortened(label: str, room_pt: float, look: FigureLook) -> str:
    """The label, or as much of both its ends as fits, with … between them."""
    room_pt -= look.handle_pt
    if _width_pt(label, look.legend_pt) <= room_pt:
        return label

    def cut(letters: int) -> str:
        return f"{label[:letters]}…{label[-letters:]}"

    too_wide = bisect_left(
        range(1, ceil(len(label) / 2)), x=True, key=lambda n: _width_pt(cut(n), look.legend_pt) > room_pt
    )
    return cut(max(1, too_wide))


def _width_pt(text: str, size_pt: float) -> float:
    """The width of a line of text in points, and 5 % for the rounding of glyphs to pixels."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size_pt)
    width, _, _ = text_to_path.get_text_width_height_descent(text or " ", font, ismath=False)  # without its outlines
    return max(1.0, 1.05 * float(width))


@dataclass(frozen=True)
class PlotPoint:
    """A point between `low` and `high`, with `label` beside it; `x` is a number or the name of a category."""

    x: float | str
    y: float
    low: float
    high: float
    label: str = ""


def draw_points(
    axes: "Axes", xs: Sequence[float], points: Sequence[PlotPoint], style: SeriesStyle, name: str,
    markersize: float = 4.5, linewidth: float = 1.4,
) -> None:  # fmt: skip
    """Points at `xs` with error bars, connected by a line."""
    ys = [point.y for point in points]
    spans = [[max(0.0, point.y - point.low) for point in points], [max(0.0, point.high - point.y) for point in points]]
    axes.errorbar(xs, ys, yerr=spans, color=style.colour, ecolor=style.colour, elinewidth=1.0, marker=style.marker,
                  markersize=markersize, linestyle=style.line, linewidth=linewidth, capsize=2, label=name)  # fmt: skip


def label_points(axes: "Axes", placed: Sequence[tuple[float, PlotPoint, str]], look: FigureLook = SCREEN) -> None:
    """The labels of points at x, each in its series' colour; none where so many would cover each other and the data."""
    labelled = [(x, point, colour) for x, point, colour in placed if point.label]
    for x, point, colour in labelled if len(labelled) <= _MAX_POINT_LABELS else ():
        axes.annotate(
            point.label, (x, point.y), (6, -11), textcoords="offset points", fontsize=look.note_pt, color=colour
        )


LANES = {
    "draft": ("device drafts", "#3366cc"),
    "device_layers": ("device runs layers", "#2a9db0"),
    "uplink": ("uplink", "#c79a1b"),
    "queue": ("cloud queue", "#c5ccd3"),
    "prefill": ("cloud prefill", "#8b5cc7"),
    "cloud_draft": ("cloud drafts", "#7a9ad6"),
    "verify": ("cloud verifies", "#d9572b"),
    "decode": ("cloud decodes", "#c2417c"),
    "downlink": ("downlink", "#2f9e6e"),
}
_USER_LANE = "user sees"
_MAX_ROUNDS = 12
_MARKED_PERCENTILES = (0.5, 0.9, 0.99)
LATENCY_PANELS = ("ttft_s", "tbt_s")
"""The figures of a job's latency, by the ends of their metrics' keys."""


def draw_latency(records: Records, path: Path, look: FigureLook = SCREEN) -> Path:
    """Distributions of TTFT and of TBT: the share of requests at or below each time."""
    figure = create_figure(9.0, 3.4)
    for place, name in enumerate(LATENCY_PANELS, 1):
        draw_latency_panel(figure.add_subplot(1, 2, place), records, name, look)
    return save_figure(figure, path, f"{records.meta.policy}: latency of {len(records.requests)} requests", look)


def draw_latency_panel(axes: "Axes", records: Records, name: str, look: FigureLook = SCREEN) -> None:
    """One of `LATENCY_PANELS`."""
    metric = definitions.metric(f"latency/{name}")
    assert isinstance(metric.formula, definitions.Distribution)
    values_s = [getattr(request, metric.formula.attribute) for request in records.requests]
    if look.titled:
        axes.set_title(metric.name, loc="left", fontsize=look.label_pt + 1, color=TEXT_COLOUR)
    style_axes(axes, "ms" if look.titled else f"{metric.label}, ms", "share of requests", look)
    _draw_ecdf(axes, values_s, look.colours[LATENCY_PANELS.index(name)], look)


def _draw_ecdf(axes: "Axes", values_s: Sequence[float | None], colour: str, look: FigureLook) -> None:
    ranked = sorted(1000 * value for value in values_s if value is not None)
    axes.set_ylim(0, 1.04)
    if not ranked:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color=MUTED_COLOUR)
        return
    shares = [(index + 1) / len(ranked) for index in range(len(ranked))]
    axes.step([ranked[0], *ranked], [0.0, *shares], where="post", color=colour, linewidth=1.8)
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, 0.0) if ranked[0] < right / 3 else left, right + 0.14 * (right - left))
    for share in _MARKED_PERCENTILES:
        value = percentile(ranked, share)
        axes.plot([value], [share], "o", color=colour, markersize=4)
        label = f"p{100 * share:.0f}  {value:,.0f}" if value >= 100 else f"p{100 * share:.0f}  {value:.1f}"
        axes.annotate(
            label, (value, share), (6, -9), textcoords="offset points", fontsize=look.note_pt, color=TEXT_COLOUR
        )


def draw_timeline(records: Records, path: Path, look: FigureLook = SCREEN) -> Path:
    """The time line of a typical request: drafting, link, queue, verification, and when the user saw each token."""
    request = typical_request(records)
    pieces = sorted(records.timeline_of(request.request), key=_start_order)
    until_s = _end_of_axis(pieces, request)
    lanes = [lane for lane in LANES if any(piece.lane == lane for piece in pieces)]
    figure = create_figure(9.5, 1.5 + 0.42 * (len(lanes) + 1))
    axes = figure.add_subplot()
    for row, lane in enumerate(lanes):
        _draw_lane(axes, row, [piece for piece in pieces if piece.lane == lane], request, until_s)
    _draw_token_times(axes, len(lanes), request, until_s)
    axes.set_yticks(range(len(lanes) + 1), [LANES[lane][0] for lane in lanes] + [_USER_LANE])
    axes.set_ylim(len(lanes) + 0.6, -0.6)
    axes.set_xlim(0, 1000 * (until_s - request.arrived_s))
    style_axes(axes, "ms since the request arrived", "")
    axes.grid(visible=False, axis="y")
    return save_figure(figure, path, _timeline_title(records, request, until_s), look)


def typical_request(records: Records) -> RequestRecord:
    """The median end to end of the complete requests that used the cloud; else of all complete ones, else of all."""
    used = records.requests_on("prefill", "verify", "decode")
    complete = [request for request in records.requests if request.complete]
    chosen = [request for request in complete if request.request in used] or complete or list(records.requests)
    ranked = sorted(chosen, key=lambda request: (request.end_to_end_s or 0.0, request.request))
    return ranked[(len(ranked) - 1) // 2]


def _start_order(piece: TimelineSpan) -> tuple[float, str]:
    return piece.start_s, piece.lane


def _end_of_axis(pieces: Sequence[TimelineSpan], request: RequestRecord) -> float:
    """The request's end, or the end of its first `_MAX_ROUNDS` rounds with the cloud (without a cloud: drafts)."""
    ends_s = [*(piece.end_s for piece in pieces), *request.token_times_s]
    ends_s.append(request.ended_s or request.arrived_s)
    lane = "downlink" if any(piece.lane == "downlink" for piece in pieces) else "draft"
    rounds = [piece for piece in pieces if piece.lane == lane]
    whole_s = max(*ends_s, request.arrived_s + 0.001)
    return rounds[_MAX_ROUNDS - 1].end_s if len(rounds) > _MAX_ROUNDS else whole_s


def _draw_lane(axes: "Axes", row: int, pieces: Sequence[TimelineSpan], request: RequestRecord, until_s: float) -> None:
    colour = LANES[pieces[0].lane][1]
    scale = 1000.0
    shown = [piece for piece in pieces if piece.start_s < until_s]
    spans = [(scale * (one.start_s - request.arrived_s), scale * (one.end_s - one.start_s)) for one in shown]
    axes.broken_barh(spans, (row - 0.34, 0.68), facecolors=colour, edgecolors="white", linewidth=0.6)
    wide = 0.02 * scale * (until_s - request.arrived_s)
    for (begin, width), piece in zip(spans, shown, strict=True):
        if width >= wide and piece.lane not in ("uplink", "downlink", "queue") and piece.end_s <= until_s:
            axes.text(begin + width / 2, row, str(piece.amount), ha="center", va="center", fontsize=7.5, color="white")


def _draw_token_times(axes: "Axes", row: int, request: RequestRecord, until_s: float) -> None:
    """The number of tokens that the user saw at each moment, in the cloud's colour if it judged or wrote one."""
    moments: dict[float, list[str]] = defaultdict(list)
    for seen_s, origin in zip(request.token_times_s, request.origins, strict=True):
        moments[seen_s].append(origin)
    lately_s = 0.012 * (until_s - request.arrived_s)
    written_s = -lately_s
    for seen_s, origins in sorted(moments.items()):
        alone = set(origins) <= {"device", "offline"}
        at = 1000 * (seen_s - request.arrived_s)
        if seen_s <= until_s:
            axes.vlines(at, row - 0.34, row + 0.05, color=LANES["draft" if alone else "verify"][1], linewidth=1.8)
        if seen_s <= until_s and seen_s - written_s > lately_s:
            axes.text(at, row + 0.14, str(len(origins)), ha="center", va="top", fontsize=7.5, color=TEXT_COLOUR)
            written_s = seen_s


def _timeline_title(records: Records, request: RequestRecord, until_s: float) -> str:
    total_s = max([until_s, *request.token_times_s]) - request.arrived_s
    shown_s = until_s - request.arrived_s
    part = f", its first {shown_s:.2f} s of {total_s:.2f}" if shown_s < 0.99 * total_s else ""
    tokens = f"{request.prompt_tokens} tokens in, {len(request.tokens)} out"
    return f"{records.meta.policy}: request {request.request} ({tokens}){part}"


@dataclass(frozen=True)
class TradeoffPoint:
    """One complete job of a sweep: its mean quality between `low` and `high`, and its metrics by key.

    Jobs of one `group` are one line, in the colour of their `policy`.
    """

    group: str
    label: str
    quality: float
    low: float
    high: float
    metrics: Mapping[str, float]
    policy: str = ""


TRADEOFF_AXES = {
    "offloading/token_share": "tokens that the cloud judged or wrote, %",
    "latency/tbt_s/mean": "mean time between tokens, ms",
    "latency/service_s_per_token/mean": "mean service time a token, ms",
    "cost/usd_per_million_tokens": "cloud cost, USD a million tokens",
}


def draw_tradeoff(points: Sequence[TradeoffPoint], path: Path, metric: str = "quality") -> Path:
    """Quality against offloaded share, TBT, service time and cloud cost; an axis without data is left out.

    Raises ValueError without any point.
    """
    if not points:
        raise ValueError("a trade-off needs one complete job with a quality at least.")
    keys = tradeoff_axes(points)
    figure = tradeoff_figure(points, keys, metric, (4.4 * len(keys), 4.0))
    return save_figure(figure, path, f"{metric} and what it costs (bars: 95 % intervals)")


def tradeoff_axes(points: Sequence[TradeoffPoint]) -> list[str]:
    """The metrics that quality is drawn against: those of which a point has a value, the first if there is none."""
    return [key for key in TRADEOFF_AXES if any(key in point.metrics for point in points)] or [*TRADEOFF_AXES][:1]


def tradeoff_figure(
    points: Sequence[TradeoffPoint], keys: Sequence[str], metric: str, size: tuple[float, float],
    look: FigureLook = SCREEN,
) -> "Figure":  # fmt: skip
    """Quality against each of `keys`, side by side on a sheet of this size in inches."""
    figure = create_figure(*size)
    styles = series_styles({point.group: point.policy for point in points}, look.colours)
    first = None
    for column, key in enumerate(keys):
        first = panel = figure.add_subplot(1, len(keys), column + 1, sharey=first)
        _draw_quality_against(panel, points, key, styles, look)
        style_axes(panel, TRADEOFF_AXES[key], metric if column == 0 else "", look)
        panel.margins(x=0.12, y=0.12)
    add_legend(figure, look)
    return figure


def _draw_quality_against(
    axes: "Axes", points: Sequence[TradeoffPoint], key: str, styles: Mapping[str, SeriesStyle],
    look: FigureLook = SCREEN,
) -> None:  # fmt: skip
    metric = definitions.find(key)
    assert metric is not None
    placed = []
    for group, style in styles.items():
        known = [point for point in points if point.group == group and key in point.metrics]
        xs = [metric.scale * point.metrics[key] for point in known]
        marks = [PlotPoint(x, one.quality, one.low, one.high, one.label) for x, one in zip(xs, known, strict=True)]
        draw_points(axes, xs, marks, style, group, markersize=look.marker_pt + 1)
        placed += [(x, mark, style.colour) for x, mark in zip(xs, marks, strict=True)]
    label_points(axes, placed, look)
