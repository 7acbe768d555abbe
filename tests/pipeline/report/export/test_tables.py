"""One table of results: which cells are marked, and what LaTeX, CSV and HTML say of it."""

import csv
import io
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path

import pytest

from pipeline.report.estimate import Estimate, estimate_mean, pool
from pipeline.report.export import significance
from pipeline.report.export.html import html_table
from pipeline.report.export.latex import escape, latex_table
from pipeline.report.export.legend import legend
from pipeline.report.export.results import ResultCell, ResultColumn, ResultRow, ResultTable
from pipeline.report.export.significance import judge
from pipeline.report.export.tidy import tidy_csv

WAVE = [0.1 * (n % 5) for n in range(40)]
"""Forty prompts whose values differ."""
ALIKE = [value + (0.05 if n % 2 else -0.07) for n, value in enumerate(WAVE)]
FAR = [value - 1.0 - 0.01 * (n % 3) for n, value in enumerate(WAVE)]
COLUMN = ResultColumn("TBT & gaps", "%", "higher")


def row(label: str, values: list[float], group: str = "", *cells: ResultCell, **more: object) -> ResultRow:
    cell = ResultCell.of(estimate_mean(values), **more)  # type: ignore[arg-type]
    return ResultRow((label,), (cell, *cells), group)


def table(*rows: ResultRow, column: ResultColumn = COLUMN, **more: object) -> ResultTable:
    return ResultTable("t_1", "Rows of 50 % & more", ("policy",), (column,), rows, **more)  # type: ignore[arg-type]


THREE = table(row("best_one", WAVE), row("alike", ALIKE), row("far", FAR))


def test_only_the_row_that_differs_from_the_best_is_marked() -> None:
    found = judge(THREE)
    assert found.best == {(0, 0)}
    assert [found.differs(place, 0) for place in range(3)] == [False, False, True]
    assert found.num_tests == 3


def test_a_lower_value_is_best_where_lower_is_better_and_none_without_a_direction() -> None:
    lower = table(*THREE.rows, column=ResultColumn("TBT", "ms", "lower"))
    assert judge(lower).best == {(2, 0)}
    assert judge(table(*THREE.rows, column=ResultColumn("share"))).best == frozenset()


def test_each_group_has_a_best_and_is_tested_within_itself() -> None:
    found = judge(table(row("a", WAVE, "one"), row("b", FAR, "one"), row("a", FAR, "two"), row("b", WAVE, "two")))
    assert found.best == {(0, 0), (3, 0)}
    assert set(found.p_values) == {(1, 0), (2, 0)}
    assert found.num_tests == 2


def test_rows_are_tested_against_a_baseline_where_one_is_named() -> None:
    found = judge(table(*THREE.rows, against={0: 2, 1: 2}))
    assert set(found.p_values) == {(0, 0), (1, 0)}
    assert found.differs(0, 0)
    assert found.num_tests == 2


def test_values_that_are_printed_alike_are_equally_good_and_all_alike_have_no_best() -> None:
    assert judge(table(row("a", [1.0] * 9), row("b", [1.0] * 9))).best == frozenset()
    shared = judge(table(row("a", [1.0] * 9), row("b", [1.0] * 9), row("c", [0.0] * 9)))
    assert shared.best == {(0, 0), (1, 0)}
    assert set(shared.p_values) == {(2, 0)}


def test_few_prompts_cannot_be_significant() -> None:
    found = judge(table(row("a", [1.0] * 4), row("b", [0.0] * 4)))
    assert found.p_values == {(1, 0): 2 / 2**4}
    assert not found.differs(1, 0)


def test_other_prompts_are_not_compared() -> None:
    assert judge(table(row("a", WAVE), row("b", FAR[:20]))).p_values == {}


def test_seeds_that_disagree_are_not_significant() -> None:
    def pooled(values: dict[str, list[float]]) -> ResultCell:
        found = pool([estimate_mean(own, seed) for seed, own in values.items()])
        assert found is not None
        return ResultCell.of(found)

    agree = pooled({"0": FAR, "1": FAR, "2": FAR})
    turned = pooled({"0": FAR, "1": FAR, "2": [value + 2.0 for value in WAVE]})
    best = pooled({"0": WAVE, "1": WAVE, "2": WAVE})
    low = table(ResultRow(("best",), (best,)), ResultRow(("agree",), (agree,)))
    assert judge(low).differs(1, 0)
    mixed = table(ResultRow(("best",), (best,)), ResultRow(("turned",), (turned,)))
    assert not judge(mixed).differs(1, 0)


def test_a_large_table_keeps_marks_that_permutations_could_not_show() -> None:
    rows = [row(f"r{n}", [value - 0.001 * n for value in FAR]) for n in range(25)]
    found = judge(table(row("best", WAVE), *rows))
    assert found.num_tests == 26 * 25 // 2
    assert all(found.differs(place, 0) for place in range(1, 26))


def test_pairs_of_cells_are_counted_by_their_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells whose seeds overlap are a pair; those of other prompts, or without resamples, are none."""
    one, both, other = (pool([estimate_mean(WAVE, seed) for seed in seeds]) for seeds in ("0", "01", "1"))
    kinds = [one, both, other, estimate_mean(FAR[:20], "0"), Estimate({"0": 1.0})]
    rows = [ResultRow((f"{n}",), (ResultCell.of(kind),)) for n, kind in enumerate(kinds * 4) if kind]
    cells = [own.cells[0] for own in rows]
    expected = sum(significance._pair(*pair) for pair in combinations(cells, 2))
    looked: list[int] = []
    pair = significance._pair
    monkeypatch.setattr(significance, "_pair", lambda *two: looked.append(1) or pair(*two))
    assert significance._num_pairs(table(*rows), 0) == expected
    assert 0 < expected < len(rows) * (len(rows) - 1) // 2
    assert len(looked) < 2 * len(rows)


def test_latex_is_bold_at_the_best_and_has_daggers_where_rows_differ() -> None:
    text = latex_table(THREE, judge(THREE), "a_command & more")
    lines = {name: next(line for line in text.splitlines() if line.startswith(name)) for name in
             (r"best\_one", "alike", "far")}  # fmt: skip
    assert [r"\mathbf" in line for line in lines.values()] == [True, False, False]
    assert [r"\dagger" in line for line in lines.values()] == [False, False, True]
    assert r"\scriptstyle[" in lines["alike"]
    assert r"TBT \& gaps, \% $\uparrow$" in text
    assert r"\caption{Rows of 50 \% \& more}" in text
    assert "Holm's correction for 3 comparisons" in text


def test_the_legend_names_the_method_of_the_intervals() -> None:
    seeds = pool([estimate_mean(WAVE, "0"), estimate_mean(FAR, "1")])
    assert seeds is not None
    written = ResultRow(("a",), (ResultCell(1.0, 0.5, 1.5, by_seed={"0": 0.9, "1": 1.1}),))
    tables = [THREE, table(ResultRow(("a",), (ResultCell.of(seeds),))), table(written)]
    assert [dict(legend(one, judge(one)))["[ ]"] for one in tables] == [
        "95 % interval, bootstrap over prompts",
        "95 % interval, bootstrap over prompts, Student's t over seeds",
        "95 % interval over seeds and prompts",
    ]


def test_the_legend_names_no_method_of_cells_without_an_interval_by_it() -> None:
    equal = pool([estimate_mean(WAVE, "0"), estimate_mean(WAVE, "1")])
    percentile = Estimate({"0": 1.0, "1": 2.0})
    assert equal is not None
    for own in (equal, percentile):
        found = table(row("a", WAVE), ResultRow(("b",), (ResultCell.of(own),)))
        assert dict(legend(found, judge(found)))["[ ]"] == "95 % interval, bootstrap over prompts"


def assert_sound(text: str) -> None:
    """Braces and environments close, cells of a tabular are as many as its columns, no bare special is left."""
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    depth = 0
    for letter in re.sub(r"\\[{}]", "", body):
        depth += (letter == "{") - (letter == "}")
        assert depth >= 0
    assert depth == 0
    assert re.findall(r"\\begin\{(\w+\*?)\}", body) == re.findall(r"\\end\{(\w+\*?)\}", body)[::-1] or (
        body.count(r"\begin") == body.count(r"\end")
    )
    assert body.replace(r"\$", "").count("$") % 2 == 0
    assert not re.search(r"(?<!\\)[%#]", body)
    for shape, rows in re.findall(r"\\begin\{tabular\}\{@\{\}(\w+)@\{\}\}(.*?)\\end\{tabular\}", body, re.DOTALL):
        for line in re.findall(r"^(.*) \\\\$", rows, re.MULTILINE):
            spans = sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", line))
            assert len(re.findall(r"(?<!\\)&", line)) + 1 + spans == len(shape), line


AWKWARD = r"50 % of_a & b # $5 {x} ~ ^ \ <3> | “é” …"


def awkward() -> ResultTable:
    rows = (
        row(AWKWARD, WAVE, "group_1 & 2", ResultCell(text=AWKWARD), reported=1.5),
        ResultRow(("lost",), (ResultCell(), ResultCell()), "group_1 & 2", problem=AWKWARD),
        ResultRow(("failed",), (), "other", problem="failed: 70 GB_of & more"),
        ResultRow(("big",), (ResultCell(-12345.6, -13000.0, -11000.0), ResultCell(0.5)), "other"),
    )  # fmt: skip
    columns = (ResultColumn("a_b", "%", "lower"), ResultColumn(AWKWARD))
    return ResultTable("odd name_1", AWKWARD, ("row",), columns, rows, notes=(("note", AWKWARD),))


def test_latex_of_awkward_texts_is_sound() -> None:
    text = latex_table(awkward(), judge(awkward()), "50 % of_a\nline")
    assert_sound(text)
    assert r"-12{,}346" in text
    assert escape("a_b% & c") == r"a\_b\% \& c"
    assert escape("{\\}") == r"\{\textbackslash{}\}"


def wide() -> ResultTable:
    columns = tuple(ResultColumn(f"a column of some width {n}", "ms", "lower") for n in range(9))
    rows = tuple(
        ResultRow((f"row {n}",), (ResultCell.of(estimate_mean([n + 1.0, n + 2.0])),) * 9, f"g{n // 40}")
        for n in range(120)
    )
    return ResultTable("wide", "Wide", ("row",), columns, rows)


def test_a_wide_and_long_table_is_several_with_all_rows_and_columns() -> None:
    found = wide()
    text = latex_table(found, judge(found))
    assert_sound(text)
    assert text.count(r"\begin{table*}") > 2
    assert r"\caption{Wide (continued)}" in text
    blocks = len(set(re.findall(r"^row & .*$", text, re.MULTILINE)))
    assert blocks > 1
    for place in (0, 55, 119):
        assert len(re.findall(rf"^row {place} &", text, re.MULTILINE)) == blocks
    assert text.count("a column of some width 8") >= 1


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex (Debian: texlive-latex-recommended)")
def test_latex_compiles(tmp_path: Path) -> None:
    tables = [THREE, awkward(), wide()]
    body = "\n".join(latex_table(one, judge(one)) for one in tables)
    (tmp_path / "x.tex").write_text(
        "\\documentclass[twocolumn]{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
        f"{body}\n\\end{{document}}\n", encoding="utf-8",
    )  # fmt: skip
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "x.tex"], cwd=tmp_path, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "x.pdf").stat().st_size > 10_000


def test_csv_has_every_number_in_full() -> None:
    read = list(csv.DictReader(io.StringIO(tidy_csv(THREE, judge(THREE)))))
    assert [one["label policy"] for one in read] == ["best_one", "alike", "far"]
    for line, own in zip(read, THREE.rows, strict=True):
        cell = own.cells[0]
        assert (float(line["value"]), float(line["low"]), float(line["high"])) == (cell.value, cell.low, cell.high)
        assert (line["unit"], line["column"], line["prompts"]) == ("%", "TBT & gaps", "40")
    assert [line["best"] for line in read] == ["1", "0", "0"]
    assert [line["differs"] for line in read] == ["0", "0", "1"]
    assert float(read[2]["p_holm"]) == judge(THREE).p_values[2, 0]


def test_csv_keeps_texts_problems_seeds_and_what_is_reported() -> None:
    read = list(csv.DictReader(io.StringIO(tidy_csv(awkward(), judge(awkward())))))
    assert len(read) == 2 + 2 + 1 + 2
    assert read[0]["reported"] == "1.5"
    assert read[1]["text"] == AWKWARD
    assert (read[4]["label row"], read[4]["problem"]) == ("failed", "failed: 70 GB_of & more")
    seeds = pool([estimate_mean(WAVE, "3"), estimate_mean(FAR, "7")])
    assert seeds is not None
    found = table(ResultRow(("a",), (ResultCell.of(seeds),)))
    (line,) = csv.DictReader(io.StringIO(tidy_csv(found, judge(found))))
    assert line["seeds"] == "3 7"
    assert [float(one) for one in line["by_seed"].split()] == list(seeds.values.values())


class Cells(HTMLParser):
    """The rows of a table: the texts of its cells, and the numbers that they sort by."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.keys: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
            self.keys.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.keys[-1].append(dict(attrs).get("data-sort") or "")
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def test_html_has_every_row_with_numbers_to_sort_by() -> None:
    text = html_table(THREE)
    read = Cells(text)
    assert [one[0] for one in read.rows] == ["policy", "best_one", "alike", "far"]
    assert [float(keys[1]) for keys in read.keys[1:]] == [own.cells[0].value for own in THREE.rows]
    assert read.rows[3][1].split()[0].endswith("†")
    assert "<b>" in text


def test_html_of_awkward_texts_is_sound_and_its_groups_stay_together() -> None:
    text = html_table(awkward())
    read = Cells(text)
    assert read.rows[1][:2] == ["group_1 & 2", AWKWARD]
    assert "<3>" not in text
    assert read.rows[2][-1] == AWKWARD
    assert len({len(one) for one in (read.rows[0], read.rows[1], read.rows[4])}) == 1


def test_a_row_with_other_cells_than_the_table_has_is_refused() -> None:
    with pytest.raises(ValueError, match="2 labels and 1 cells"):
        table(ResultRow(("a", "b"), (ResultCell(1.0),)))
