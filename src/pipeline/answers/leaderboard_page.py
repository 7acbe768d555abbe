"""The leaderboard as one HTML file: tables that a click sorts, and a picture of each setting."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from pipeline.answers.board import Board
from pipeline.answers.leaderboard_report import COLUMNS, COST, SERVICE, BoardReport, Place
from pipeline.report import figures
from pipeline.report.export.html import html_table
from pipeline.report.export.page import html_document, inline_svg
from pipeline.report.export.results import ResultCell, ResultColumn, ResultRow, ResultTable
from pipeline.report.export.tables import metric_column
from pipeline.report.figures import PlotPoint
from pipeline.report.series_style import series_styles
from pipeline.report.table import LabelledTexts, Table
from serving.metrics import definitions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def html(found: BoardReport, board: Board, command: str) -> str:
    """The page of a board."""
    overall = next(part for part in found.parts if isinstance(part, Table))
    notes = next(part for part in found.parts if isinstance(part, LabelledTexts))
    sections = [("overall", "All settings", html_table(_overall_table(overall)))]
    for name in dict.fromkeys(place.setting for place in found.places):
        own = [place for place in found.places if place.setting == name]
        sections.append((name, board.settings[name].title, "".join(_setting(name, own, board))))
    facts = "".join(f"<tr><td>{escape(label)}</td><td>{escape(text)}</td></tr>" for label, text in notes.pairs)
    sections.append(("notes", "Notes", f'<table class="plain">{facts}</table>'))
    return html_document("Leaderboard", f"<pre class=command>{escape(command)}</pre>\n", sections)


def _overall_table(overall: Table) -> ResultTable:
    heads = [heading.replace("\n", " ") for heading in overall.headings]
    rows = [ResultRow((row[0],), tuple(_overall_cell(text) for text in row[1:])) for row in overall.rows]
    return ResultTable("overall", "All settings", (heads[0],), tuple(map(ResultColumn, heads[1:])), tuple(rows))


def _overall_cell(text: str) -> ResultCell:
    """A number where the text is one: a column is sorted by its numbers."""
    first = text.partition(" (")[0].replace(",", "")
    return ResultCell(float(first)) if first.replace(".", "", 1).isdigit() else ResultCell(text=text)


def _setting(name: str, places: Sequence[Place], board: Board) -> Iterator[str]:
    yield f"<p class=facts>{escape(' '.join(board.settings[name].words))}</p>"
    yield html_table(_setting_table(name, places))
    yield f'<div class="figures"><figure>{inline_svg(_picture(places), name)}</figure></div>'


def _setting_table(name: str, places: Sequence[Place]) -> ResultTable:
    columns = tuple(metric_column(key) for _, key, _ in COLUMNS)
    rows = [
        ResultRow((place.policy,), tuple(_cell(place, key) for _, key, _ in COLUMNS), place.kind) for place in places
    ]
    return ResultTable(name, name, ("policy",), columns, tuple(rows))


def _cell(place: Place, key: str) -> ResultCell:
    found, metric = place.measured.get(key), definitions.find(key)
    if found is None or metric is None:
        return ResultCell(text="-")
    low, high = (None if one is None else metric.scale * one for one in (found.low, found.high))
    return ResultCell(metric.scale * found.value, low, high)


def _picture(places: Sequence[Place]) -> "Figure":
    """Service time against cost, with intervals."""
    sheet = figures.create_figure(5.2, 3.6)
    axes = sheet.add_subplot(1, 1, 1)
    for name, style in series_styles({place.policy: place.policy for place in places}).items():
        own = next(place for place in places if place.policy == name)
        cost, service = own.measured.get(COST), own.measured.get(SERVICE)
        if cost and service:
            low, high = (1e3 * (service.value if one is None else one) for one in (service.low, service.high))
            figures.draw_points(
                axes, [cost.value], [PlotPoint(cost.value, 1e3 * service.value, low, high)], style, name
            )
    figures.style_axes(axes, "cost, USD/M tokens", "service a token, ms")
    axes.set_xscale("log")
    axes.set_yscale("log")
    figures.add_legend(sheet)
    return sheet
