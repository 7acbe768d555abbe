import re

import pytest

from pipeline.report.exhibit import Exhibit
from pipeline.report.exhibit.rows import fill_template, parse_override, template_fields
from pipeline.report.exhibit.schema import Claim, ExhibitColumn, ExhibitFigure, RelativeTo, RowTemplate

QUALITY = (ExhibitColumn("quality"),)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda: ExhibitColumn(" ", "x"), "the column of metric 'x' has no name"),
        (lambda: ExhibitColumn("TBT", scale=0), "the scale of 'TBT' is 0"),
        (lambda: RelativeTo(), "`relative` needs a `row`, `groups` or a `column`"),
        (
            lambda: Exhibit("t", (ExhibitColumn("a", relative=RelativeTo(column="b")), ExhibitColumn("b"))),
            "'a' is compared with 'b'; put it behind that column",
        ),
        (
            lambda: Exhibit("t", (ExhibitColumn("a", relative=RelativeTo("x", then=RelativeTo(column="b"))),)),
            "exhibit.columns, 'a': there is no column 'b'",
        ),
        (lambda: RowTemplate(""), "exhibit.rows.label is empty"),
        (lambda: RowTemplate("{policy}", pool_over="{seed}"), "it names one choice, without braces"),
        (lambda: Claim("so", "a", "quality", "above"), "'so' needs one of `baseline` (a row) and `value`"),
        (lambda: Claim("so", "a", "quality", "above", "b", 3), "'so' needs one of `baseline` (a row) and `value`"),
        (lambda: Claim("so", "a", "quality", "equal", "b"), "say within which `margin`"),
        (lambda: Claim("so", "a", "quality", "above", "b", margin=-1), "the margin of 'so' is -1"),
        (lambda: Exhibit("t", ()), "exhibit.columns are []"),
        (lambda: Exhibit("t", QUALITY * 2), "each a name of its own"),
        (lambda: Exhibit("t", QUALITY, reported={"a": {"TBT": 1}}), "there is no column 'TBT'; there are 'quality'"),
        (lambda: Exhibit("t", QUALITY, reported={"a": 3}), "'a' is 3; column names with their values"),
        (lambda: Exhibit("t", QUALITY, reported={"g": {"a": {"quality": 1}, "b": 2}}), "has groups in some places"),
        (
            lambda: Exhibit("t", QUALITY, figure=ExhibitFigure("{x}", "TBT")),
            "exhibit.figure.y: there is no column 'TBT'",
        ),
        (
            lambda: Exhibit("t", QUALITY, figure=ExhibitFigure("x", "quality")),
            "exhibit.figure.x: there is no column 'x'",
        ),
    ],
)
def test_invalid_exhibits_are_refused(what, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        what()


def test_reported_is_by_row_or_by_group_and_row():
    assert Exhibit("t", QUALITY, reported={"a": {"quality": 1}}).reported_rows() == {("", "a"): {"quality": 1}}
    grouped = Exhibit("t", QUALITY, reported={"g": {"a": {"quality": 1}, "b": {}}, "h": {"a": {"quality": 2}}})
    assert grouped.reported_rows() == {("g", "a"): {"quality": 1}, ("g", "b"): {}, ("h", "a"): {"quality": 2}}


def test_a_metric_that_no_column_shows_is_a_column_of_its_own():
    exhibit = Exhibit("t", (ExhibitColumn("TBT, ms", "latency/tbt_s/mean", 1000),))
    assert exhibit.column("TBT, ms").scale == 1000
    assert exhibit.column("quality").metric_name == "quality/mean"


def test_a_template_is_filled_with_what_was_chosen():
    assert template_fields("{pair}: {policy/offload} {pair}") == ["pair", "policy/offload"]
    assert fill_template("budget {policy.offload.budget} of {x}", {"policy.offload.budget": "0.2"}) == "budget 0.2 of -"
    assert (parse_override("+variant=a/b"), parse_override("x='a b'")) == (("variant", "a/b"), ("x", "a b"))
