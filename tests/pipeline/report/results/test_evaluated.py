"""Columns and claims that an exhibit has got since its result was kept."""

from dataclasses import replace

import pytest

from pipeline.config import sources
from pipeline.report.exhibit import Exhibit
from pipeline.report.exhibit.jobs import RowKey
from pipeline.report.exhibit.schema import Claim, ExhibitColumn, RelativeTo
from pipeline.report.results.evaluated import evaluate
from pipeline.report.results.kept import LATER, KeptResult, KeptResultError, read_results

FASTER = Claim("a is faster than b", "a", "TBT, ms", "below", baseline="b")
COLUMN = ExhibitColumn("TBT, ms", "latency/tbt_s/mean", 1000)
GROWTH = ExhibitColumn("TBT of that at 4", "latency/tbt_s/mean", relative=RelativeTo(groups={"9": "4"}))
GROWS = Claim("a's TBT doubles", "a", GROWTH.name, "equal", value=2.0, margin=0.2, group="9", reported="2 times")


def row(group, label, *values):
    mean = sum(values) / len(values)
    cell = {"value": mean, "low": mean - 1, "high": mean + 1, "by_replicate": dict(zip("012", values, strict=True))}
    return {"group": group, "row": label, "requests": 9, "prompts": 3, "columns": {COLUMN.name: {"measured": cell}}}


ROWS = [
    row("4", "a", 10.0, 11.0, 12.0),
    row("4", "b", 20, 20, 20),
    row("9", "a", 20.0, 22.0, 24.6),
    row("9", "b", 30, 31, 32),
]
PLACES = {RowKey(group, label, seed) for group in "49" for label in "ab" for seed in "012"}
KEPT_CLAIMS = [
    {
        "statement": "a was faster", "group": group, "row": "a", "baseline": "b", "metric": COLUMN.name,
        "relation": "below", "margin": 0.0, "status": "holds", "difference": -9, "low": -12.0, "high": -6.0,
        "standard_error": 0.7, "basis": "95 % interval",
    }
    for group in "49"
]  # fmt: skip
FILES = {"config": sources.file_digest("config")}
RESULT = KeptResult(
    "hat/x", {"title": "t", "rows": ROWS, "claims": KEPT_CLAIMS}, FILES, "old", ("abc",), "2026-11-26", 12
)


def exhibit(*columns, claims=(FASTER,)):
    return Exhibit("new title", (COLUMN, *columns), claims=claims, deviations=("links are constant",))


def test_what_was_kept_stays_and_texts_are_those_of_today():
    found = evaluate(RESULT, exhibit(), PLACES)
    assert [row["columns"][COLUMN.name]["measured"] for row in found.exhibit["rows"]] == [
        row["columns"][COLUMN.name]["measured"] for row in ROWS
    ]
    first = found.exhibit["claims"][0]
    assert (first["statement"], first["low"], first["standard_error"]) == ("a is faster than b", -12.0, 0.7)
    assert (found.exhibit["title"], found.exhibit["deviations"]) == ("new title", ["links are constant"])
    assert found.exhibit_digest == sources.exhibit_digest(["config"])
    assert (found.date, found.revisions) == (RESULT.date, RESULT.revisions)


def test_a_new_column_and_its_claim_are_of_the_seeds_of_the_kept_rows():
    """20 / 10, 22 / 11 and 24.6 / 12: a mean of 2.0167, a standard error of 0.0167, and Student's t of 4.303."""
    found = evaluate(RESULT, exhibit(GROWTH, claims=(FASTER, GROWS)), PLACES)
    cells = {(row["group"], row["row"]): row["columns"][GROWTH.name]["measured"] for row in found.exhibit["rows"]}
    assert cells["4", "a"] is None
    assert cells["9", "a"]["by_replicate"] == pytest.approx({"0": 2.0, "1": 2.0, "2": 2.05})
    assert cells["9", "a"]["low"] == pytest.approx(2.01667 - 4.303 * 0.016667, abs=1e-4)
    claim = found.exhibit["claims"][-1]
    assert (claim["status"], claim["basis"], claim["reported"]) == ("holds", "Student's t over seeds", "2 times")
    assert claim["difference"] == pytest.approx(0.01667, abs=1e-4)


def test_a_kept_difference_keeps_its_interval_for_another_margin_and_number():
    """Its bounds are -12 and -6 for the number 0."""
    kept = [{**node, "baseline": None, "value": 30.0} for node in KEPT_CLAIMS[:1]]
    result = replace(RESULT, exhibit={**RESULT.exhibit, "claims": kept})
    asked = [
        Claim("21 within 3", "a", COLUMN.name, "equal", value=21.0, margin=3.5, group="4"),
        Claim("21 within 2", "a", COLUMN.name, "equal", value=21.0, margin=2.0, group="4"),
        Claim("below 30", "a", COLUMN.name, "below", value=30.0, group="4"),
    ]
    near, nearer, below = evaluate(result, exhibit(claims=asked), PLACES).exhibit["claims"]
    assert [one["status"] for one in (near, nearer, below)] == ["holds", "inconclusive", "holds"]
    assert (near["difference"], near["low"], near["high"], near["standard_error"]) == (0.0, -3.0, 3.0, 0.7)
    assert (below["low"], below["high"]) == (-12.0, -6.0)


def test_a_kept_ratio_of_those_seeds_that_had_a_denominator_is_left_out():
    """b is 0 in one of three seeds. A kept ratio to a column that is not kept stays: nothing says more of it."""
    of_b = ExhibitColumn("TBT of b's", "latency/tbt_s/mean", relative=RelativeTo("b"))
    of_cost = ExhibitColumn("cost of b's", "cost/usd_per_million_tokens", relative=RelativeTo("b"))
    ratio = {"measured": {"value": 3.5, "low": 1.0, "high": 6.0, "by_replicate": {"0": 3.0, "1": 4.0}}}
    rows = [row("4", "a", 3.0, 4.0, 5.0), row("4", "b", 1.0, 1.0, 0.0)]
    rows[0]["columns"] |= {of_b.name: ratio, of_cost.name: ratio}
    result = replace(RESULT, exhibit={**RESULT.exhibit, "rows": rows, "claims": []})
    found = evaluate(result, exhibit(of_b, of_cost, claims=()), set()).exhibit["rows"][0]["columns"]
    assert found[of_b.name]["measured"] is None
    assert found[of_cost.name]["measured"] == ratio["measured"]


def test_a_result_that_is_evaluated_twice_is_the_same(tmp_path):
    new = exhibit(GROWTH, claims=(FASTER, GROWS))
    once = evaluate(RESULT, new, PLACES)
    once.write(tmp_path)
    (read,) = read_results(tmp_path)
    path = evaluate(read, new, PLACES).write(tmp_path / "again")
    assert path.read_text() == (tmp_path / "hat" / "x.json").read_text()


def test_what_is_asked_later_is_marked_for_good():
    """Another wording asks the same; another margin, another group and another column do not."""
    again = Claim("a needs less than b", "a", COLUMN.name, "below", baseline="b")
    wider = replace(again, margin=1.0, group="9")
    asked = exhibit(GROWTH, claims=(again, wider, GROWS))
    found = evaluate(RESULT, asked, PLACES)
    assert [claim.get(LATER, False) for claim in found.exhibit["claims"]] == [False, False, True, True]
    twice = evaluate(found, asked, PLACES)
    assert [claim.get(LATER, False) for claim in twice.exhibit["claims"]] == [False, False, True, True]
    assert RESULT.with_later_claims(None) is RESULT


def test_a_number_that_was_rounded_when_it_was_kept_is_no_later_claim(tmp_path):
    third = Claim("a takes a third of 30", "a", COLUMN.name, "equal", value=31 / 3, margin=1 / 3)
    first = evaluate(replace(RESULT, exhibit={**RESULT.exhibit, "claims": []}), exhibit(claims=(third,)), PLACES)
    unmarked = [{key: value for key, value in claim.items() if key != LATER} for claim in first.exhibit["claims"]]
    replace(first, exhibit={**first.exhibit, "claims": unmarked}).write(tmp_path)
    (read,) = read_results(tmp_path)
    assert not any(claim.get(LATER) for claim in evaluate(read, exhibit(claims=(third,)), PLACES).exhibit["claims"])


def test_what_no_kept_column_shows_is_refused():
    with pytest.raises(KeptResultError, match="no kept column shows latency/ttft_s/mean, which 'TTFT' needs"):
        evaluate(RESULT, exhibit(ExhibitColumn("TTFT", "latency/ttft_s/mean")), PLACES)
    claim = Claim("a answers soon", "a", "latency/ttft_s/mean", "below", baseline="b")
    with pytest.raises(KeptResultError, match="no kept column is 'latency/ttft_s/mean', which the claim"):
        evaluate(RESULT, exhibit(claims=(claim,)), PLACES)


@pytest.mark.parametrize("places", [PLACES | {RowKey("9", "a", "3")}, PLACES - {RowKey("9", "b", "1")}])
def test_a_sweep_of_other_rows_or_seeds_is_refused(places):
    with pytest.raises(KeptResultError, match="the experiment has other rows or seeds"):
        evaluate(RESULT, exhibit(), places)


def test_a_configuration_that_has_changed_is_refused():
    with pytest.raises(KeptResultError, match=r"conf/config\.yaml has changed"):
        evaluate(replace(RESULT, files={"config": "0"}), exhibit(), PLACES)


def test_rows_that_tables_name_are_not_compared_with_the_sweep():
    assert evaluate(RESULT, exhibit(), set()).exhibit["title"] == "new title"
