"""A table of results as LaTeX source: booktabs, intervals, the best in bold, daggers for significant differences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.report.export.legend import legend
from pipeline.report.export.results import ResultCell, ResultColumn, ResultTable, format_cell, format_reported
from pipeline.report.export.significance import Judgement

NARROW_CHARS, WIDE_CHARS, PAGE_LINES = 50, 112, 62
"""Characters of a line in one column and across both columns of a page, and lines of a page, in footnote size."""
_HEADING_LINES, _REASON_CHARS = 3, 60
_GAP_CHARS = 2
_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "†": r"$\dagger$", "|": r"\textbar{}", "…": r"\ldots{}", "\u00d7": r"$\times$", "≤": r"$\leq$", "≥": r"$\geq$",
    "±": r"$\pm$", "µ": r"$\mu$", "τ": r"$\tau$", "\u2212": r"$-$", '"': "''",
}  # fmt: skip
_ARROWS = {"higher": r"$\uparrow$", "lower": r"$\downarrow$", "": ""}
_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+")


@dataclass(frozen=True)
class _Piece:
    """The rows and columns of one tabular."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]


def escape(text: str) -> str:
    """The text with every character that LaTeX would read as a command."""
    return "".join(_SPECIAL.get(letter, letter) for letter in " ".join(text.split()))


def latex_table(table: ResultTable, found: Judgement, source: str = "") -> str:
    """Whole `table` environments, which need `\\usepackage{booktabs}`; `source` is a comment at the top.

    A table wider than the page is several tabulars, each with the row labels; one longer than the page is several, too.
    Those that do not fit on one page are tables of their own, which say that they continue the first.
    """
    floats = list(_floats(table))
    heads = [r"% \usepackage{booktabs}", *([f"% {' '.join(source.split())}"] if source else [])]
    parts = [_float(table, pieces, found, number, len(floats)) for number, pieces in enumerate(floats, 1)]
    return "\n".join([*heads, *parts]) + "\n"


def _float(table: ResultTable, pieces: Sequence[_Piece], found: Judgement, number: int, last: int) -> str:
    """The notes stand below the last one."""
    wide = last > 1 or len(pieces) > 1 or _width(table, pieces[0].columns) > NARROW_CHARS
    kind = "table*" if wide else "table"
    notes = [f"{escape(label)}: {escape(text)}." for label, text in legend(table, found)] if number == last else []
    title = escape(table.title) + (" (continued)" if number > 1 else "")
    return "\n".join(
        [
            rf"\begin{{{kind}}}[tp]",
            r"\centering\footnotesize",
            rf"\caption{{{title}}}",
            rf"\label{{tab:{_label(table.name)}{f'-{number}' if number > 1 else ''}}}",
            r"\par\smallskip",
            "\n\\par\\medskip\n".join("\n".join(_tabular(table, piece, found)) for piece in pieces),
            *([r"\par\smallskip\raggedright\scriptsize", "\n".join(notes)] if notes else []),
            rf"\end{{{kind}}}",
        ]
    )


def _floats(table: ResultTable) -> Iterator[list[_Piece]]:
    """The tabulars of each page."""
    blocks = list(_blocks(table))
    for rows in _pages_of_rows(table):
        lines = len(rows) + len({table.rows[place].group for place in rows}) + _HEADING_LINES
        fit = max(1, PAGE_LINES // lines)
        for first in range(0, len(blocks), fit):
            yield [_Piece(tuple(rows), tuple(columns)) for columns in blocks[first : first + fit]]


def _pages_of_rows(table: ResultTable) -> Iterator[list[int]]:
    """The rows of each page, those of one group together where they fit."""
    room = PAGE_LINES - _HEADING_LINES
    page: list[int] = []
    used = 0
    for group in table.groups:
        places = [place for place, row in enumerate(table.rows) if row.group == group]
        if page and used + len(places) + 1 > room:
            yield page
            page, used = [], 0
        while len(places) + 1 > room:
            yield places[: room - 1]
            places = places[room - 1 :]
        page += places
        used += len(places) + 1
    if page or not table.rows:
        yield page


def _label(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]+", "-", name)


def _blocks(table: ResultTable) -> Iterator[list[int]]:
    """The columns of each tabular."""
    labels = _width(table, [])
    block: list[int] = []
    width = labels
    for column in range(len(table.columns)):
        own = _width(table, [column]) - labels
        if block and width + own > WIDE_CHARS:
            yield block
            block, width = [], labels
        block.append(column)
        width += own
    yield block


def _width(table: ResultTable, columns: Sequence[int]) -> int:
    """Characters of a line with the labels and these columns."""
    labels = [max(map(len, [head, *own])) for head, *own in _label_columns(table)]
    return sum(labels) + _GAP_CHARS * len(labels) + sum(_column_width(table, column) for column in columns)


def _label_columns(table: ResultTable) -> list[list[str]]:
    return [[head, *(row.labels[place] for row in table.rows)] for place, head in enumerate(table.label_heads)]


def _column_width(table: ResultTable, column: int) -> int:
    cells = [row.cells[column] for row in table.rows if row.cells]
    own = max((len(format_cell(cell)) for cell in cells), default=1)
    reported = max((len(format_reported(cell.reported)) for cell in cells), default=0)
    theirs = max(len("reported"), reported) + _GAP_CHARS if column in table.reported_columns else 0
    return max(own + theirs, len(table.columns[column].heading) + 2) + _GAP_CHARS


def _tabular(table: ResultTable, piece: _Piece, found: Judgement) -> Iterator[str]:
    labels = len(table.label_heads)
    shape = "l" * labels + "".join("rr" if column in table.reported_columns else "r" for column in piece.columns)
    yield rf"\begin{{tabular}}{{@{{}}{shape}@{{}}}}"
    yield r"\toprule"
    yield from _heading_lines(table, piece.columns)
    for group in dict.fromkeys(table.rows[place].group for place in piece.rows):
        yield r"\midrule"
        if group:
            yield rf"\multicolumn{{{len(shape)}}}{{@{{}}l}}{{\textit{{{escape(group)}}}}} \\"
        for place in piece.rows:
            if table.rows[place].group == group:
                yield " & ".join(_row_cells(table, place, piece, found, len(shape) - labels)) + r" \\"
    yield r"\bottomrule"
    yield r"\end{tabular}"


def _row_cells(table: ResultTable, place: int, piece: _Piece, found: Judgement, width: int) -> list[str]:
    """Labels and cells, or why there are none across all `width` columns."""
    row = table.rows[place]
    labels = list(map(escape, row.labels))
    if row.cells and not (row.is_empty and row.problem):
        return [*labels, *(text for column in piece.columns for text in _cell_texts(table, place, column, found))]
    reason = row.problem or "-"
    short = reason if len(reason) <= _REASON_CHARS else f"{reason[: _REASON_CHARS - 1]}…"
    return [*labels, rf"\multicolumn{{{width}}}{{l@{{}}}}{{{escape(short)}}}"]


def _heading_lines(table: ResultTable, columns: Sequence[int]) -> Iterator[str]:
    """The headings; where a paper reports values, `reported` and `ours` below them."""
    labels = [escape(head) for head in table.label_heads]
    if not any(column in table.reported_columns for column in columns):
        yield " & ".join([*labels, *(_heading(table.columns[column]) for column in columns)]) + r" \\"
        return
    heads, rules, below, at = [""] * len(labels), [], list(labels), len(labels) + 1
    for column in columns:
        text = _heading(table.columns[column])
        if column in table.reported_columns:
            heads.append(rf"\multicolumn{{2}}{{c}}{{{text}}}")
            rules.append(rf"\cmidrule(lr){{{at}-{at + 1}}}")
            below += ["reported", "ours"]
            at += 2
        else:
            heads.append(text)
            below.append("")
            at += 1
    yield " & ".join(heads) + r" \\"
    yield "".join(rules)
    yield " & ".join(below) + r" \\"


def _heading(column: ResultColumn) -> str:
    return f"{escape(column.heading)} {_ARROWS[column.better]}".strip()


def _cell_texts(table: ResultTable, row: int, column: int, found: Judgement) -> Iterator[str]:
    cell = table.rows[row].cells[column]
    if column in table.reported_columns:
        yield "--" if cell.reported is None else _text(format_reported(cell.reported))
    yield _measured(cell, best=(row, column) in found.best, differs=found.differs(row, column))


def _measured(cell: ResultCell, best: bool, differs: bool) -> str:
    if cell.value is None:
        return escape(cell.text) or "--"
    value = _math(cell.format_value())
    bounds = cell.format_bounds()
    parts = [rf"\mathbf{{{value}}}" if best else value]
    if differs:
        parts.append(r"^{\dagger}")
    if bounds:
        parts.append(rf"\,{{\scriptstyle[{_math(bounds[0])},\,{_math(bounds[1])}]}}")
    return f"${''.join(parts)}$"


def _text(text: str) -> str:
    return f"${_math(text)}$" if _NUMBER.fullmatch(text) else escape(text)


def _math(number: str) -> str:
    """Thousands are not set apart as items of a list."""
    return number.replace(",", "{,}")
