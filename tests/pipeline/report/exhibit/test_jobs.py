"""The metrics of a job's stages in a sweep."""

import json

import pytest

from pipeline.report import comparison, job
from pipeline.report.context import JobContext, StageRun
from pipeline.report.exhibit import Exhibit
from pipeline.report.exhibit.jobs import rows_of_jobs
from pipeline.report.exhibit.schema import ExhibitColumn, RowTemplate
from pipeline.report.exhibit.sweep import SweepExhibit
from pipeline.report.job_result import JobResult
from pipeline.report.mlflow_store import Tracking
from pipeline.report.table import plain_lines
from pipeline.report.text_reference import shared_prefix
from tests.pipeline.report.serve_artifact import request, write


def reported(tmp_path, number: int, alpha: float, metric: str = "alpha", rows: object = None) -> None:
    """A job of a sweep that ended with a report stage of its own."""
    artifact, folder = tmp_path / f"stage{number}", tmp_path / "sweep" / str(number)
    artifact.mkdir()
    (artifact / "metrics.json").write_text(json.dumps({metric: alpha}))
    if rows is not None:
        (artifact / "rows.json").write_text(json.dumps(rows))
    stage = StageRun("hits", f"hits-{number}", "report", artifact, 1.0, False)
    job.report_stage(
        JobContext(
            folder, Tracking(uri="none"), {}, (f"seed={number}",), stages=(stage,), number=number,
            sweep=tmp_path / "sweep",
        ),
        artifact,
    )  # fmt: skip


def test_a_stages_numbers_are_metrics_of_its_job(tmp_path):
    for number, alpha in enumerate((0.5, 0.7)):
        reported(tmp_path, number, alpha)
    rows = comparison.compare_jobs(tmp_path / "sweep")
    assert [row.problem for row in rows] == [None, None]
    exhibit = Exhibit("t", (ExhibitColumn("alpha", "stage/hits/alpha"),), rows=RowTemplate("all", pool_over="seed"))
    (line,) = rows_of_jobs(exhibit, rows, {})
    alpha = line.measured["stage/hits/alpha"]
    assert (alpha.value, alpha.seed_range, alpha.interval) == (0.6, (0.5, 0.7), None)


def test_a_stages_number_that_has_a_value_for_each_answer_has_an_interval(tmp_path):
    for number, share in enumerate((0.5, 0.7)):
        by_answer = [share - 0.2, share + 0.2] * 8
        reported(tmp_path, number, share, "token/all/top_1", {"token": {"all": {"top_1": by_answer}}})
    hits = ExhibitColumn("hits", "stage/hits/token/all/top_1")
    exhibit = Exhibit("t", (hits,), rows=RowTemplate("all", pool_over="seed"))
    (line,) = rows_of_jobs(exhibit, comparison.compare_jobs(tmp_path / "sweep"), {})
    found = line.measured[hits.metric_name]
    assert found.value == pytest.approx(0.6)
    assert found.interval.low < 0.5 < 0.7 < found.interval.high  # by two seeds little is known


def test_the_rows_of_the_jobs_tables_are_pooled_over_their_seeds(tmp_path):
    for number, share in enumerate((0.5, 0.7)):
        row = {"top_1": [share - 0.2, share + 0.2] * 8, "count": 10 * number, "how": "by hand"}
        reported(tmp_path, number, share, rows={"token": {"all": row}})
    exhibit = Exhibit("t", (ExhibitColumn("top_1"),), rows=RowTemplate(pool_over="seed", from_table=True))
    (line,) = rows_of_jobs(exhibit, comparison.compare_jobs(tmp_path / "sweep"), {})
    assert (line.group, line.label) == ("token", "all")
    found = line.measured["top_1"]
    assert found.value == pytest.approx(0.6)
    assert found.seed_range == pytest.approx((0.5, 0.7))
    assert found.interval.low < 0.5 < 0.7 < found.interval.high  # by two seeds little is known
    assert (line.measured["count"].value, line.measured["how"]) == (5, "by hand")


def test_seeds_within_the_tables_of_several_seeds_are_all_pooled(tmp_path):
    for number, values in enumerate(((0.5, 0.6), (0.9, 1.0))):
        reported(tmp_path, number, 0.5, rows={"all": {"top_1": {"by_seed": dict(zip("01", values, strict=True))}}})
    exhibit = Exhibit("t", (ExhibitColumn("top_1"),), rows=RowTemplate(pool_over="seed", from_table=True))
    (line,) = rows_of_jobs(exhibit, comparison.compare_jobs(tmp_path / "sweep"), {})
    assert dict(line.measured["top_1"].values) == {"0/0": 0.5, "0/1": 0.6, "1/0": 0.9, "1/1": 1.0}


@pytest.mark.parametrize("status", ["failed", "complete"])
def test_a_sweep_without_any_table_says_why(tmp_path, monkeypatch, status):
    """A job without an artifact reads no rows.json of the folder that the command ran in."""
    (tmp_path / "rows.json").write_text(json.dumps({"all": {"top_1": 0.5}}))
    monkeypatch.chdir(tmp_path)
    JobResult(status, 0, "sled", ("seed=0",), "d", None, error="no disk", metrics={}).write(tmp_path / "sweep" / "0")
    exhibit = Exhibit("t", (ExhibitColumn("top_1"),), rows=RowTemplate(pool_over="seed", from_table=True))
    (line,) = rows_of_jobs(exhibit, comparison.compare_jobs(tmp_path / "sweep"), {})
    assert not line.measured
    assert line.problem == {"failed": "job 0 failed: no disk", "complete": "no job left an artifact"}[status]


def test_a_job_that_left_no_table_is_one_note_and_no_problem_of_any_row(tmp_path):
    for number in (0, 1):
        rows = {"all": {"top_1": 0.5}, "some": {"top_1": 0.6, "why": "few answers"}}
        reported(tmp_path, number, 0.5, rows=rows)
    JobResult("failed", 2, "sled", ("seed=2",), error="boom").write(tmp_path / "sweep" / "2")
    exhibit = Exhibit("t", (ExhibitColumn("top_1"),), rows=RowTemplate(pool_over="seed", from_table=True))
    jobs = comparison.compare_jobs(tmp_path / "sweep")
    assert [row.problem for row in rows_of_jobs(exhibit, jobs, {})] == [None, "few answers"]
    said = "\n".join(plain_lines(SweepExhibit(exhibit).write(jobs, tmp_path).parts))
    assert said.count("job 2 failed: boom") == 1
    assert said.count("some: few answers") == 1


def test_rows_of_a_table_have_no_texts():
    with pytest.raises(ValueError, match=r"leave text_reference out"):
        RowTemplate(from_table=True, text_reference="cloud")


def test_texts_are_compared_with_those_of_the_reference_row_prompt_by_prompt(tmp_path):
    texts = {"cloud": ("one two three four", "five"), "synera": ("one two four three", "five")}
    for number, (policy, (first, second)) in enumerate(texts.items()):
        rows = [
            request("a", "cccc", [1.0, 2.0, 3.0, 4.0], text=first, tokens=[1, 2, *((3, 4) if number == 0 else (4, 3))]),
            request("b", "c", [1.0], text=second, tokens=[5]),
        ]
        artifact = str(write(tmp_path / policy, rows))
        JobResult("complete", number, policy, (f"policy={policy}",), "d", artifact, metrics={}).write(
            tmp_path / "sweep" / str(number)
        )
    columns = (
        ExhibitColumn("ROUGE-1", "text/rouge_1"),
        ExhibitColumn("prefix", "text/same_prefix"),
        ExhibitColumn("equal", "text/equal"),
    )
    exhibit = Exhibit("t", columns, rows=RowTemplate("{policy}", text_reference="cloud"))
    cloud, synera = rows_of_jobs(exhibit, comparison.compare_jobs(tmp_path / "sweep"), {})
    assert [cloud.measured[column.metric_name].value for column in columns] == [1.0, 1.0, 1.0]
    assert synera.measured["text/rouge_1"].value == pytest.approx(1.0)  # the same words in another order
    assert synera.measured["text/equal"].value == 0.5
    assert synera.measured["text/same_prefix"].value == pytest.approx((0.5 + 1.0) / 2)


@pytest.mark.parametrize(("tokens", "share"), [((1, 2), 0.5), ((1, 2, 3, 4, 5), 1.0), ((9,), 0.0), ((), 0.0)])
def test_the_shared_prefix_is_a_share_of_the_reference(tokens, share):
    assert shared_prefix(tokens, (1, 2, 3, 4)) == share
    assert shared_prefix(tokens, ()) == 1.0
