import json

import pytest

from pipeline.report.exhibit import Exhibit
from pipeline.report.exhibit.schema import Claim, ExhibitColumn, ExhibitFigure
from pipeline.report.exhibit.stage import TableError, read_rows, report_exhibit

RIGHT = [1.0] * 30 + [0.0] * 10
WRONG = [1.0] * 12 + [0.0] * 28


def table(folder, node):
    folder.mkdir(exist_ok=True)
    (folder / "rows.json").write_text(json.dumps(node))
    return folder


EXHIBIT = Exhibit(
    "Fig. 5: which tokens to send",
    (ExhibitColumn("share sent", "share"), ExhibitColumn("quality"), ExhibitColumn("how"), ExhibitColumn("typo")),
    reported={"importance 0.1": {"quality": 0.7}, "importance 0.9": {"quality": "as the cloud"}},
    figure=ExhibitFigure("share sent", "quality", series="how"),
    claims=(Claim("importance beats random at 0.1", "importance 0.1", "quality", "above", baseline="random 0.1"),),
    deviations=("our pair",),
)
ROWS = {
    "importance 0.1": {"share": 0.1, "quality": RIGHT, "how": "importance"},
    "random 0.1": {"share": 0.1, "quality": WRONG, "how": "random"},
}


def test_a_stages_rows_are_shown_beside_what_is_reported(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    report_exhibit(out, exhibit=EXHIBIT, table=table(tmp_path / "t", ROWS))
    text = (out / "exhibit.txt").read_text(encoding="utf-8")
    assert "holds  importance beats random at 0.1: quality +0.450 [" in text
    assert "differs  our pair" in text
    assert "note     no row has 'typo'; there are how, quality/mean, share" in text
    assert "as the cloud | -" in text
    assert (out / "figures" / "exhibit.png").stat().st_size > 1000
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["exhibit/importance 0.1/quality"] == 0.75
    assert metrics["exhibit/claims holds"] == 1
    written = json.loads((out / "exhibit.json").read_text())
    assert written["rows"][0]["columns"]["quality"]["reported"] == 0.7
    assert written["rows"][2]["problem"] == "not run"


def test_rows_may_be_in_groups(tmp_path):
    found = list(read_rows(table(tmp_path, {"g": ROWS, "h": ROWS})))
    assert [(line.group, line.label) for line in found[1:3]] == [("g", "random 0.1"), ("h", "importance 0.1")]


@pytest.mark.parametrize("grouped", [False, True])
def test_a_cell_by_seed_covers_the_seeds(tmp_path, grouped):
    row = {"a": {"q": {"by_seed": {"0": RIGHT, "1": WRONG}}, "n": {"by_seed": {"0": 3, "1": 5}}}}
    (line,) = read_rows(table(tmp_path, {"g": row} if grouped else row))
    quality, number = line.measured["q"], line.measured["n"]
    assert (line.group, quality.value, quality.seed_range) == ("g" if grouped else "", 0.525, (0.3, 0.75))
    assert quality.interval.low < 0.3 < 0.75 < quality.interval.high  # by two seeds little is known
    assert number.value == 4
    assert (number.interval.low, number.interval.high) == pytest.approx((4 - 12.71, 4 + 12.71), abs=0.3)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ([1], r"is no table: \{row: \{column: cell\}\} is wanted"),
        ({"a": 3}, "is no table"),
        ({"a": {"q": [1, "b"]}}, r"rows.json: a, q is \[1, 'b'\]; a number, a text, null, a list of"),
        ({"a": {"q": []}}, r"a, q is \[\]"),
        ({"a": {"q": {"by_seed": {}}}}, r"a, q is \{'by_seed': \{\}\}"),
        ({"g": {"a": {"q": {"seeds": [1]}}}}, r"a, q is \{'seeds': \[1\]\}"),
    ],
)
def test_invalid_tables_of_a_stage_are_refused(tmp_path, node, message):
    with pytest.raises(TableError, match=message):
        list(read_rows(table(tmp_path, node)))


def test_a_stage_without_rows_is_an_error(tmp_path):
    with pytest.raises(TableError, match="cannot be read as the rows of an exhibit"):
        list(read_rows(tmp_path))
