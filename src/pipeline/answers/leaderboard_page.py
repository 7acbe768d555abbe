"""The leaderboard as one HTML file: tables that a click sorts, and a picture of each setting."""

from collections.abc import Iterator, Sequence
from html import escape

from pipeline.answers.front import front_figure
from pipeline.answers.leaderboard_report import Board, SettingResult, overall_table
from pipeline.answers.rows import COST, SERVICE
from pipeline.report.export.html import html_table
from pipeline.report.export.page import html_document, inline_svg
from pipeline.report.export.results import ResultCell, ResultColumn, ResultRow, ResultTable


def html(board: Board, notes: Sequence[tuple[str, str]], command: str) -> str:
    """The page of a board; `notes` stand below its tables."""
    sections = [("overall", "All settings", html_table(_overall(board)))]
    sections += [(one.name, one.setting.title, "".join(_setting(one))) for one in board.results if one.rows]
    facts = "".join(f"<tr><td>{escape(label)}</td><td>{escape(text)}</td></tr>" for label, text in notes)
    sections.append(("notes", "Notes", f'<table class="plain">{facts}</table>'))
    return html_document("Leaderboard", f"<pre class=command>{escape(command)}</pre>\n", sections)


def _overall(board: Board) -> ResultTable:
    found = overall_table(board)
    heads = [heading.replace("\n", " ") for heading in found.headings]
    rows = [ResultRow((row[0],), tuple(map(_sortable, row[1:]))) for row in found.rows]
    return ResultTable("overall", "All settings", (heads[0],), tuple(map(ResultColumn, heads[1:])), tuple(rows))


def _sortable(text: str) -> ResultCell:
    """A number where the text begins with one: a column is sorted by its numbers."""
    first = text.partition(" (")[0].replace(",", "")
    return ResultCell(float(first) if first.replace(".", "", 1).isdigit() else None, text=text)


def _setting(result: SettingResult) -> Iterator[str]:
    yield f"<p class=facts>{escape(' '.join(result.setting.words))}</p>"
    yield html_table(result.table, result.judgement)
    drawn = front_figure(result.rows, [row for row in result.rows if row.lossless], (COST, SERVICE))
    caption = "the line: the front of lossless rows"
    picture = f"<figure>{inline_svg(drawn, result.name)}<figcaption>{caption}</figcaption></figure>"
    yield f'<div class="figures">{picture}</div>'
