"""Prints titles, tables and labelled facts: as plain lines in a file, with rich on a terminal."""

import csv
import io
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import floor, isfinite, log10
from typing import TYPE_CHECKING, TextIO, TypeAlias

from pipeline.artifacts.manifest import format_nbytes
from serving.metrics.definitions import MetricSpec

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100
"""Columns of a line without a terminal."""
_GAP = "  "
_LEAST_LABEL = 8
"""Columns that each label keeps beside a value as wide as the page, if all of them fit into half of it."""


class Remark(str):
    """A text behind a row's labels, in place of its values."""


@dataclass(frozen=True)
class Table:
    """Rows of cells below headings of one or two lines; the first `num_label_columns` columns label a row.

    A row may have a `Remark` behind its labels instead of values.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_label_columns: int = 1

    def split_to_width(self, width: int) -> list["Table"]:
        """As many tables as are needed for each to fit into `width`, all with the labels; the first has the remarks.

        Labels that leave no room for a value are wrapped.
        """
        room = width - len(_GAP) - max(map(self._width, range(self.num_label_columns, len(self.headings))), default=0)
        if self._labels_width() > room:
            least = self.num_label_columns * _LEAST_LABEL
            return self._wrap_labels(min(max(least, room), width // 2))._split_columns(width)
        return self._split_columns(width)

    def _labels_width(self) -> int:
        return sum(self._width(column) + len(_GAP) for column in range(self.num_label_columns)) - len(_GAP)

    def _wrap_labels(self, room: int) -> "Table":
        """Labels of at most `room` columns together: the longest go on in rows below, without values."""
        widths = [self._width(column) for column in range(self.num_label_columns)]
        room -= len(_GAP) * (len(widths) - 1)
        most = next((n for n in range(max(widths), 1, -1) if sum(min(n, one) for one in widths) <= room), 1)
        heads = [textwrap.fill(head.replace("\n", " "), most) for head in self.headings[: len(widths)]]
        rows = tuple(line for row in self.rows for line in self._wrapped_row(row, most))
        return replace(self, headings=(*heads, *self.headings[len(widths) :]), rows=rows)

    def _wrapped_row(self, row: tuple[str, ...], most: int) -> list[tuple[str, ...]]:
        labels, values = row[: self.num_label_columns], row[self.num_label_columns :]
        lines = list(zip_longest(*(textwrap.wrap(one, most) or [""] for one in labels), fillvalue=""))
        empty = tuple(type(value)("") for value in values)
        return [(*line, *(values if number == 0 else empty)) for number, line in enumerate(lines)]

    def _split_columns(self, width: int) -> list["Table"]:
        widths = [self._width(column) + len(_GAP) for column in range(len(self.headings))]
        left = width + len(_GAP) - sum(widths[: self.num_label_columns])
        groups: list[list[int]] = [[]]
        for column in range(self.num_label_columns, len(self.headings)):
            if groups[-1] and sum(widths[one] for one in groups[-1]) + widths[column] > left:
                groups.append([])
            groups[-1].append(column)
        whole = [row for row in self.rows if not self._is_remark(row)]
        rest = replace(self, rows=tuple(whole))
        return [
            (rest if group is not groups[0] else self)._select_columns([*range(self.num_label_columns), *group])
            for group in groups
        ]

    def lines(self, width: int) -> list[str]:
        """Labels and remarks are aligned left, values right; remarks are cut at `width`."""
        widths = [self._width(column) for column in range(len(self.headings))]
        depth = max(heading.count("\n") + 1 for heading in self.headings)
        heads = [("\n" * (depth - 1 - heading.count("\n")) + heading).split("\n") for heading in self.headings]
        rows = [*zip(*heads, strict=True), tuple("-" * one for one in widths), *self.rows]
        return [_cut(_GAP.join(map(self._aligned, row, widths, range(len(row)))).rstrip(), width) for row in rows]

    def _aligned(self, cell: str, width: int, column: int) -> str:
        return cell.ljust(width) if column < self.num_label_columns or len(cell) > width else cell.rjust(width)

    def _width(self, column: int) -> int:
        values = (row[column] for row in self.rows if column < self.num_label_columns or not self._is_remark(row))
        return max(map(len, [*self.headings[column].split("\n"), *values]))

    def _is_remark(self, row: tuple[str, ...]) -> bool:
        return isinstance(row[-1], Remark)

    def _select_columns(self, columns: Sequence[int]) -> "Table":
        rows = tuple(row if self._is_remark(row) else tuple(row[column] for column in columns) for row in self.rows)
        return replace(self, headings=tuple(self.headings[column] for column in columns), rows=rows)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"


@dataclass(frozen=True)
class LabelledTexts:
    """Pairs of label and text; the texts are wrapped."""

    pairs: tuple[tuple[str, str], ...]

    def lines(self, width: int) -> list[str]:
        indent = max((len(label) for label, _ in self.pairs), default=0) + len(_GAP)
        lines: list[str] = []
        for label, text in self.pairs:
            lines += textwrap.wrap(
                text, width, initial_indent=label.ljust(indent), subsequent_indent=" " * indent, break_on_hyphens=False,
                break_long_words=False,
            )  # fmt: skip
        return lines


ReportPart: TypeAlias = str | Table | LabelledTexts
"""A title (str), a table, or facts."""


def print_parts(parts: Sequence[ReportPart], file: TextIO) -> None:
    """Prints plain lines to `file`, or with rich if it is a terminal."""
    if file.isatty():
        _show_rich(parts, file)
    else:
        print("\n".join(plain_lines(parts)), file=file, flush=True)


def plain_lines(parts: Sequence[ReportPart], width: int = WIDTH) -> list[str]:
    """Lines of at most `width` columns, if words and columns allow it."""
    lines: list[str] = []
    for part in parts:
        lines += ["", part, "=" * len(part)] if isinstance(part, str) else _part_lines(part, width)
    return lines


def _part_lines(part: Table | LabelledTexts, width: int) -> list[str]:
    if isinstance(part, LabelledTexts):
        return ["", *part.lines(width)]
    return [line for block in part.split_to_width(width) for line in ["", *block.lines(width)]]


def markdown(parts: Sequence[ReportPart]) -> str:
    """The parts in Markdown: titles in bold, tables without blocks, facts as a list."""
    blocks = []
    for part in parts:
        if isinstance(part, LabelledTexts):
            blocks.append("\n".join(f"- **{_escaped(label)}**: {text}" for label, text in part.pairs))
        else:
            blocks.append(f"**{part}**" if isinstance(part, str) else "\n".join(_markdown_lines(part)))
    return "\n\n".join(filter(None, blocks)) + "\n"


def _markdown_lines(table: Table) -> list[str]:
    """Labels are aligned left, values right; the best of a column is bold."""
    width, labels = len(table.headings), table.num_label_columns
    rule = ["---" if column < labels else "---:" for column in range(width)]
    heads = [_escaped(heading.replace("\n", " ")) for heading in table.headings]
    rows = [[_bold(cell) for cell in row] + [""] * (width - len(row)) for row in table.rows]
    return [f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows)]


def _bold(cell: str) -> str:
    return f"**{_escaped(cell[:-1])}**" if cell.endswith("*") else _escaped(cell.strip())


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def _show_rich(parts: Sequence[ReportPart], file: TextIO) -> None:
    from rich.console import Console
    from rich.text import Text

    width = shutil.get_terminal_size((WIDTH, 24)).columns
    console = Console(file=file, width=width, highlight=False)
    for part in parts:
        if isinstance(part, str):
            console.print(Text(f"\n{part}", style="bold"), soft_wrap=True)
        elif isinstance(part, LabelledTexts):
            _show_facts(part, console)
        else:
            for block in part.split_to_width(width):
                _show_table(block, console, width)


def _show_facts(facts: LabelledTexts, console: "Console") -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid.grid(padding=(0, len(_GAP), 0, 0))
    grid.add_column(no_wrap=True, style="cyan")
    grid.add_column()
    for label, text in facts.pairs:
        grid.add_row(label, Text(text))
    console.print()
    console.print(grid)


def _show_table(table: Table, console: "Console", width: int) -> None:
    for number, line in enumerate(["", *table.lines(width)]):
        rule = set(line) <= {"-", " "}
        console.print(line, markup=False, style="dim" if rule else "bold" if number == 1 else "", soft_wrap=True)


def csv_text(records: Sequence[Mapping[str, object]]) -> str:
    """A CSV table with a column for every key of any record."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(key for one in records for key in one)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


_LEAST, _MAX_SHARED = 1e-6, 6


def format_number(value: float | None) -> str:
    """Three significant digits, never an exponent; `<0.000001` for what is nearer to 0, and a dash for None."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    if abs(value) < _LEAST:
        return f"<{_LEAST:f}" if value > 0 else f">-{_LEAST:f}"
    return f"{value:,.{_decimals(value)}f}"


def shared_decimals(values: Sequence[float]) -> int:
    """Decimals that show three significant digits of the greatest value."""
    return min(_MAX_SHARED, _decimals(max(map(abs, filter(isfinite, values)), default=0.0)))


def _decimals(value: float) -> int:
    return max(0, 2 - floor(log10(abs(value)))) if value and isfinite(value) else 0


def format_percent(share: float | None) -> str:
    """A share as a percentage with one decimal."""
    return "-" if share is None else f"{100 * share:.1f} %"


def format_metric(metric: MetricSpec, value: float | None) -> str:
    """A value of the metric in its printed style; the unit is part of it for % and bytes only."""
    if value is None:
        return "-"
    match metric.style:
        case "%":
            return format_percent(value)
        case "B":
            return format_nbytes(value)
        case "count":
            return f"{value:.0f}"
    return format_number(metric.scale * value)


def format_with_unit(metric: MetricSpec, value: float) -> str:
    """The value of the metric and its printed unit; a score has none."""
    unit = "" if metric.style in ("%", "B") or metric.unit == "score" else metric.printed_unit
    return f"{format_metric(metric, value)} {unit}".strip()
