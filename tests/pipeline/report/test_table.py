import io
from math import inf

import pytest

from pipeline.report.table import (
    LabelledTexts,
    Remark,
    Table,
    format_number,
    format_percent,
    plain_lines,
    print_parts,
)

TABLE = Table(
    ("job", "policy", "TBT ms\nmean", "quality"), (("0", "sled", "12.5", "0.9"), ("1", "edge", Remark("failed: no"))), 2
)


def test_labels_are_left_aligned_values_right_aligned_and_remarks_fill_the_rest():
    assert TABLE.lines(80) == [
        "             TBT ms",
        "job  policy    mean  quality",
        "---  ------  ------  -------",
        "0    sled      12.5      0.9",
        "1    edge    failed: no",
    ]


def test_a_remark_is_cut_at_the_width():
    assert TABLE.lines(20)[-1] == "1    edge    failed…"


def test_columns_beyond_the_width_continue_in_a_second_table():
    first, second = TABLE.split_to_width(22)
    assert first.headings == ("job", "policy", "TBT ms\nmean")
    assert second.headings == ("job", "policy", "quality")
    assert [len(one.rows) for one in (first, second)] == [2, 1]


def test_a_long_remark_does_not_widen_the_only_column_of_a_block():
    rows = (("0", "20.2 [19, 21]", "0.9"), ("1", Remark("failed: " + "very long " * 15)))
    table = Table(("job", "TBT ms", "quality"), rows)
    lines = [line for block in table.split_to_width(20) for line in block.lines(20)]
    assert lines[:4] == [
        "job         TBT ms",
        "---  -------------",
        "0    20.2 [19, 21]",
        "1    failed: very l…",
    ]


LONG = "a row of the clock whose label says all that there is to say of it, and then more"


@pytest.mark.parametrize("labels", [(LONG,), ("worst", LONG), (LONG, LONG), ("x" * 250,)])
def test_labels_wider_than_the_page_are_wrapped_and_all_values_printed(labels):
    headings = (*(f"label {n}" for n in range(len(labels))), "median\nms", "error of it")
    table = Table(headings, ((*labels, "12.5", "3 %"), (*labels, Remark("failed: no"))), len(labels))
    lines = plain_lines([table], 60)
    assert max(map(len, lines)) <= 60
    for value in ("12.5", "3 %", "failed: no", "median", "error of it"):
        assert sum(value in line for line in lines) == 1


def test_a_wrapped_label_goes_on_below_its_values():
    table = Table(("where", "ms"), (("the worst row of all", "12.5"),))
    (block,) = table.split_to_width(16)
    assert block.lines(16) == ["where     ms", "------  ----", "the     12.5", "worst", "row of", "all"]


def test_facts_are_wrapped_after_their_labels():
    assert LabelledTexts((("link", "3.9 Mbit/s up"), ("a", "b"))).lines(18) == [
        "link  3.9 Mbit/s",
        "      up",
        "a     b",
    ]


def test_a_file_gets_plain_lines_and_a_terminal_colours(monkeypatch):
    class Tty(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    parts = ["title [x]", TABLE, LabelledTexts((("link", "[up]"),))]
    file, terminal = io.StringIO(), Tty()
    print_parts(parts, file)
    print_parts(parts, terminal)
    assert file.getvalue().splitlines() == plain_lines(parts)
    assert "\x1b" not in file.getvalue()
    assert "\x1b" in terminal.getvalue()
    for text in ("title [x]", "failed: no", "[up]"):
        assert text in terminal.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.1234, "0.123"),
        (0.01234, "0.0123"),
        (-0.00041, "-0.000410"),
        (1.2e-6, "0.00000120"),
        (4e-7, "<0.000001"),
        (-4e-7, ">-0.000001"),
        (inf, "inf"),
        (1.5, "1.50"),
        (-23.45, "-23.4"),
        (170.4, "170"),
        (12345.6, "12,346"),
    ],
)
def test_numbers_are_printed_with_three_significant_digits(value, text):
    assert format_number(value) == text


def test_shares_are_printed_with_a_unit():
    assert [format_percent(None), format_percent(0.1234)] == ["-", "12.3 %"]


def test_labels_beside_a_value_as_wide_as_the_page_can_still_be_read():
    table = Table(("job", "policy", "what"), (("0", "cloud_centric", "x" * 70),), num_label_columns=2)
    assert any("cloud_c" in line for line in plain_lines([table], 70))
