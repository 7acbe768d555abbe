import json
from pathlib import Path
from typing import get_args

import pytest

from pipeline.report.estimate import Estimate, estimate_mean, pool
from pipeline.report.exhibit import Exhibit
from pipeline.report.exhibit.claims import ClaimStatus, claim_status, count_statuses, evaluate_claims
from pipeline.report.exhibit.render import exhibit_parts, write_files
from pipeline.report.exhibit.rows import ExhibitRow, RenderedExhibit
from pipeline.report.exhibit.schema import Claim, ExhibitColumn, RelativeTo
from pipeline.report.table import plain_lines


def test_the_documentation_names_every_status():
    text = (Path(__file__).parents[4] / "docs" / "exhibits.md").read_text(encoding="utf-8")
    assert [status for status in get_args(ClaimStatus) if f"*{status}*" not in text] == []


@pytest.mark.parametrize(
    ("wanted", "margin", "low", "high", "result"),
    [
        ("above", 0.0, 0.01, 0.05, "holds"),
        ("above", 0.02, 0.01, 0.05, "inconclusive"),
        ("above", 0.0, -0.01, 0.05, "inconclusive"),
        ("above", 0.0, 0.0, 0.0, "does not hold"),
        ("below", 0.0, -0.05, -0.01, "holds"),
        ("below", 0.0, 0.01, 0.05, "does not hold"),
        ("equal", 0.02, -0.01, 0.02, "holds"),
        ("equal", 0.02, -0.01, 0.03, "inconclusive"),
        ("equal", 0.02, 0.03, 0.05, "does not hold"),
        ("at_most", 0.0, 0.0, 0.0, "holds"),
        ("at_most", 0.01, -0.5, 0.01, "holds"),
        ("at_most", 0.0, 0.01, 0.02, "does not hold"),
        ("at_least", 0.01, -0.01, 0.4, "holds"),
        ("at_least", 0.01, -0.03, 0.4, "inconclusive"),
        ("at_least", 0.01, -0.03, -0.02, "does not hold"),
    ],
)
def test_a_claim_holds_or_fails_if_the_interval_lies_on_one_side(wanted, margin, low, high, result):
    assert claim_status(Claim("so", "a", "q", wanted, value=0, margin=margin), low, high) == result


def shown(*claims: Claim, **lines: Estimate) -> RenderedExhibit:
    columns = (ExhibitColumn("q"), ExhibitColumn("q of a", "q", relative=RelativeTo("a")))
    rows = [ExhibitRow("", label, {"q": cell}) for label, cell in lines.items()]
    return RenderedExhibit.with_reported_rows(Exhibit("t", columns, claims=claims), rows)


GOOD, BAD = estimate_mean([1.0] * 30 + [0.0] * 10), estimate_mean([1.0] * 12 + [0.0] * 28)


def test_a_claim_compares_two_rows_prompt_by_prompt():
    (found,) = evaluate_claims(shown(Claim("a beats b", "a", "q", "above", baseline="b"), a=GOOD, b=BAD))
    assert (found.status, found.basis) == ("holds", "95 % interval")
    assert found.difference.value == pytest.approx(0.45)
    assert 0 < found.bounds[0] < 0.45 < found.bounds[1]


def test_a_claim_on_a_relative_column_compares_the_ratio_with_a_value():
    (found,) = evaluate_claims(
        shown(Claim("b is half of a at most", "b", "q of a", "at_most", value=0.5), a=GOOD, b=BAD)
    )
    assert found.difference.value == pytest.approx(0.4 - 0.5)


def test_a_claim_on_a_column_relative_to_a_hypothetical_row_is_not_evaluated():
    claims = (Claim("half", "b", "q of a", "at_most", value=0.5), Claim("low", "b", "q", "at_most", value=0.5))
    columns = (ExhibitColumn("q"), ExhibitColumn("q of a", "q", relative=RelativeTo("a")))
    rows = [ExhibitRow("", "a", {"q": GOOD}, hypothetical="of unlike pairs"), ExhibitRow("", "b", {"q": BAD})]
    found = evaluate_claims(RenderedExhibit.with_reported_rows(Exhibit("t", columns, claims=claims), rows))
    assert [(one.status, one.basis) for one in found] == [
        ("not evaluated", "'a' is hypothetical"), ("holds", "95 % interval"),
    ]  # fmt: skip


def load(**columns: RelativeTo | None) -> RenderedExhibit:
    """Busy shares of a strong and a weak tier, in two seeds, of systems a and b under a light and a heavy load."""
    shares = {("light", "a"): (10, 20), ("heavy", "a"): (40, 50), ("light", "b"): (10, 40), ("heavy", "b"): (30, 50)}
    rows = [
        ExhibitRow(group, row, {name: Estimate({"0": value, "3": 2 * value}) for name, value in
                                zip(("strong", "weak"), found, strict=True)})
        for (group, row), found in shares.items()
    ]  # fmt: skip
    shown = (ExhibitColumn("weak, %", "weak", 100), ExhibitColumn("strong"))
    made = tuple(ExhibitColumn(name, "strong", relative=relative) for name, relative in columns.items())
    return RenderedExhibit.with_reported_rows(Exhibit("t", (*shown, *made)), rows)


GROWTH = {"groups": {"heavy": "light"}, "comparison": "difference"}


@pytest.mark.parametrize(
    ("relative", "place", "expected"),
    [
        (RelativeTo(column="weak, %"), ("heavy", "a"), {"0": 0.8, "3": 0.8}),
        (RelativeTo("b", "difference", column="weak, %"), ("heavy", "a"), {"0": -10, "3": -20}),
        (RelativeTo(**GROWTH), ("heavy", "a"), {"0": 30, "3": 60}),
        (RelativeTo(**GROWTH), ("light", "a"), None),
        (RelativeTo(**GROWTH, then=RelativeTo("b")), ("heavy", "a"), {"0": 1.5, "3": 1.5}),
        (RelativeTo(**GROWTH, then=RelativeTo("b")), ("light", "a"), None),
        (RelativeTo(**GROWTH, then=RelativeTo(column="strong")), ("heavy", "b"), {"0": 2 / 3, "3": 2 / 3}),
    ],
)
def test_a_column_is_relative_to_another_column_or_group_or_to_both(relative, place, expected):
    """Neither side has its scale: a share of 40 is 0.8 of one of 50, though the other column shows 5,000 %."""
    view = load(compared=relative)
    cell = view.measured_cell(view.row(*place), view.exhibit.column("compared"))
    assert (cell and dict(cell.values)) == (expected and pytest.approx(expected))


def test_a_relative_column_can_be_compared_with():
    """a's 40 and 80 over b's share of the strong tier in the weak one's, 0.6 in both seeds."""
    view = load(first=RelativeTo(column="weak, %"), second=RelativeTo("b", column="first"))
    cell = view.measured_cell(view.row("heavy", "a"), view.exhibit.column("second"))
    assert cell.value == pytest.approx((40 + 80) / 2 / (30 / 50))


def test_a_claim_is_not_evaluated_where_a_compared_group_is_hypothetical():
    columns = (ExhibitColumn("q"), ExhibitColumn("growth", "q", relative=RelativeTo(**GROWTH, then=RelativeTo("b"))))
    claim = Claim("it grows", "a", "growth", "above", value=0.0, group="heavy")
    for unlike in (("light", "a"), ("heavy", "b"), ("light", "b"), None):
        rows = [
            ExhibitRow(group, row, {"q": GOOD}, hypothetical="of unlike pairs" if (group, row) == unlike else "")
            for group in ("light", "heavy")
            for row in "ab"
        ]
        (found,) = evaluate_claims(RenderedExhibit(Exhibit("t", columns, claims=(claim,)), rows))
        assert (found.basis == f"{unlike and unlike[1]!r} is hypothetical") is bool(unlike)


@pytest.mark.parametrize("than", ["b", "c"])
def test_a_row_without_a_number_decides_nothing(than):
    (found,) = evaluate_claims(shown(Claim("so", "a", "q", "above", baseline=than), a=GOOD, b=None))
    assert (found.status, found.basis) == ("not evaluated", f"no number of '{than}'")


def test_without_a_seed_in_common_nothing_is_decided():
    claim = Claim("so", "a", "q", "above", baseline="b")
    (found,) = evaluate_claims(shown(claim, a=Estimate({"0": 1.0}), b=Estimate({"3": 1.0})))
    assert (found.status, found.basis) == ("not evaluated", "no seed is complete in both rows")


def test_without_an_interval_a_claim_is_judged_by_seeds_or_value():
    claim = Claim("so", "a", "q", "above", baseline="b")
    (one,) = evaluate_claims(shown(claim, a=Estimate({"0": 2.0}), b=Estimate({"0": 1.0})))
    assert (one.status, one.basis) == ("holds", "no interval")
    (seeds,) = evaluate_claims(shown(claim, a=Estimate({"0": 2.0, "3": 0.5}), b=Estimate({"0": 1.0, "3": 1.0})))
    assert (seeds.status, seeds.basis) == ("inconclusive", "Student's t over seeds")
    assert seeds.bounds == pytest.approx((0.25 - 12.706 * 0.75, 0.25 + 12.706 * 0.75), rel=1e-3)
    (other,) = evaluate_claims(shown(claim, a=GOOD, b=estimate_mean([0.0] * 7)))
    assert other.basis == "not the same prompts: no interval"


def test_seeds_that_agree_may_differ_too_much_to_decide():
    """All three are above the baseline, and a t of two degrees has 2.5 standard errors for p = 0.13."""
    claim = Claim("so", "a", "q", "above", baseline="b")
    cells = Estimate({"0": 1.1, "3": 1.3, "4": 1.8}), Estimate(dict.fromkeys("034", 1.0))
    (found,) = evaluate_claims(shown(claim, a=cells[0], b=cells[1]))
    assert found.status == "inconclusive"
    (equal,) = evaluate_claims(shown(claim, a=Estimate(dict.fromkeys("034", 1.1)), b=cells[1]))
    assert (equal.status, equal.bounds) == ("holds", pytest.approx((0.1, 0.1)))


def test_a_claim_is_made_in_every_group_or_in_one():
    rows = [ExhibitRow(group, label, {"q": cell}) for group in "gh" for label, cell in (("a", GOOD), ("b", BAD))]
    claims = (Claim("so", "a", "q", "above", baseline="b"), Claim("so", "b", "q", "above", baseline="a", group="h"))
    found = evaluate_claims(
        RenderedExhibit.with_reported_rows(Exhibit("t", (ExhibitColumn("q"),), claims=claims), rows)
    )
    assert [(one.group, one.status) for one in found] == [("g", "holds"), ("h", "holds"), ("h", "does not hold")]
    assert count_statuses(found) == {"holds": 2, "does not hold": 1}


def test_repeated_statements_say_which_rows_and_metrics_they_are_about():
    claims = (
        Claim("near the mean", "a", "q", "above", value=0.1),
        Claim("near the mean", "b", "q", "above", value=0.1),
        Claim("it gains", "a", "q", "above", baseline="b"),
        Claim("it gains", "a", "q of a", "above", baseline="b"),
        Claim("said once", "a", "q", "above", baseline="b"),
    )
    view = shown(*claims, a=GOOD, b=BAD)
    lines = plain_lines(exhibit_parts(view, evaluate_claims(view)))
    said = [line.split("  ", 1)[1].strip().rsplit(":", 1)[0] for line in lines if line.startswith("holds")]
    assert said == [
        "near the mean (a)", "near the mean (b)", "it gains (a against b, q)", "it gains (a against b, q of a)",
        "said once",
    ]  # fmt: skip


def test_the_claims_of_a_file_name_rows_and_metric(tmp_path):
    view = shown(Claim("a beats b", "a", "q", "above", baseline="b"), a=GOOD, b=BAD)
    write_files(view, evaluate_claims(view), tmp_path)
    (found,) = json.loads((tmp_path / "exhibit.json").read_text())["claims"]
    assert (found["row"], found["baseline"], found["metric"]) == ("a", "b", "q")


def test_the_legend_of_an_exhibit_says_how_its_intervals_are_made():
    seeds = pool([estimate_mean([0.1, 0.5, 0.4], "0"), estimate_mean([0.3, 0.9, 0.5], "1")])
    texts = [" ".join(plain_lines(exhibit_parts(shown(a=cell), []))) for cell in (GOOD, seeds)]
    assert ["Student's t over seeds" in text for text in texts] == [False, True]
    assert all("95 % interval, bootstrap over prompts" in text for text in texts)
