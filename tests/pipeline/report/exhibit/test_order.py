"""The best row of each group, and where another becomes the best."""

import json

import pytest

from pipeline.report import comparison, job
from pipeline.report.context import JobContext, StageRun
from pipeline.report.estimate import Estimate
from pipeline.report.exhibit import Exhibit
from pipeline.report.exhibit.order import order_texts
from pipeline.report.exhibit.rows import ExhibitRow, RenderedExhibit
from pipeline.report.exhibit.schema import ExhibitColumn, ExhibitFigure, ExhibitOrder, RowTemplate
from pipeline.report.exhibit.sweep import SweepExhibit
from pipeline.report.mlflow_store import Tracking

COSTS = {
    "10 users": {"chips": 50.0, "api": 2.0},
    "100 users": {"chips": 50.0, "api": 20.0},
    "1,000 users": {"chips": 60.0, "api": 200.0},
}


def shown(order: ExhibitOrder | None) -> RenderedExhibit:
    rows = [
        ExhibitRow(group, label, {"USD": Estimate({"": usd})})
        for group, own in COSTS.items()
        for label, usd in own.items()
    ]
    rows.append(ExhibitRow("not served", "sled", {"USD": "none"}, problem="too late"))
    return RenderedExhibit(Exhibit("t", (ExhibitColumn("USD"),), order=order), rows)


def test_the_cheapest_row_of_each_group_and_where_it_changes():
    assert order_texts(shown(ExhibitOrder("USD"))) == (
        ("best", "10 users: api (USD 2.00)"),
        ("best", "100 users: api (USD 20.0)"),
        ("best", "1,000 users: chips (USD 60.0)"),
        ("change", "between 100 users and 1,000 users: chips in place of api"),
    )


def test_the_best_may_be_the_most():
    assert order_texts(shown(ExhibitOrder("USD", "higher")))[0] == ("best", "10 users: chips (USD 50.0)")


def test_an_exhibit_without_an_order_says_nothing():
    assert order_texts(shown(None)) == ()


def test_an_order_names_a_column():
    with pytest.raises(ValueError, match=r"exhibit\.order: there is no column 'EUR'"):
        Exhibit("t", (ExhibitColumn("USD"),), order=ExhibitOrder("EUR"))


def job_with_table(folder, number, policy, rows):
    artifact = folder / f"stage{number}"
    artifact.mkdir()
    (artifact / "rows.json").write_text(json.dumps(rows))
    context = JobContext(
        folder / "sweep" / str(number), Tracking(uri="none"), {}, (f"policy={policy}",),
        stages=(StageRun("offers", f"offers-{number}", "report", artifact, 1.0, False),), number=number,
        sweep=folder / "sweep",
    )  # fmt: skip
    job.report_stage(context, artifact)


def test_tables_of_several_jobs_are_one_table_with_a_line_for_each_offer(tmp_path):
    tables = {
        "sled": {"10 users": {"a100": {"users": 10, "USD": 5.0}}, "100 users": {"a100": {"users": 100, "USD": 50.0}}},
        "cloud": {"10 users": {"api": {"users": 10, "USD": 1.0}}, "100 users": {"api": {"users": 100, "USD": 90.0}},
                  "not served": {"l40s": {"why": "it is too slow for the promise, whatever anybody does about it"}}},
    }  # fmt: skip
    for number, (policy, rows) in enumerate(tables.items()):
        job_with_table(tmp_path, number, policy, rows)
    exhibit = Exhibit(
        "t", (ExhibitColumn("USD"), ExhibitColumn("users")), figure=ExhibitFigure("users", "USD", series="{row}"),
        rows=RowTemplate("{policy}, {row}", "{group}", from_table=True), order=ExhibitOrder("USD"),
    )  # fmt: skip
    out = SweepExhibit(exhibit).write(comparison.compare_jobs(tmp_path / "sweep"), tmp_path / "sweep")
    written = json.loads((tmp_path / "sweep" / "exhibit.json").read_text())["rows"]
    assert [(row["group"], row["row"]) for row in written] == [
        ("10 users", "sled, a100"), ("10 users", "cloud, api"), ("100 users", "sled, a100"),
        ("100 users", "cloud, api"), ("not served", "cloud, l40s"),
    ]  # fmt: skip
    said = [pair for part in out.parts if hasattr(part, "pairs") for pair in part.pairs]
    assert ("change", "between 10 users and 100 users: sled, a100 in place of cloud, api") in said
    assert ("note", "cloud, l40s: it is too slow for the promise, whatever anybody does about it") in said
    assert (tmp_path / "sweep" / "exhibit.png").stat().st_size > 1000


def test_tables_that_leave_the_same_row_are_told_apart(tmp_path):
    for number, policy in enumerate(("sled", "wisp")):
        job_with_table(tmp_path, number, policy, {"a100": {"USD": number}})
    exhibit = Exhibit("t", (ExhibitColumn("USD"),), rows=RowTemplate("{row}", from_table=True))
    SweepExhibit(exhibit).write(comparison.compare_jobs(tmp_path / "sweep"), tmp_path / "sweep")
    written = json.loads((tmp_path / "sweep" / "exhibit.json").read_text())["rows"]
    assert [row["row"] for row in written] == ["a100", "a100, job 1"]
