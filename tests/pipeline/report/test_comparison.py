import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.report import comparison, job_result
from pipeline.report.comparison import compare_jobs, differing_overrides
from pipeline.report.context import JobContext
from pipeline.report.job_result import JobResult
from pipeline.report.mlflow_store import Tracking
from pipeline.report.records import Records
from pipeline.report.statistics import ConfidenceInterval
from pipeline.report.summary import summarise
from tests.pipeline.report.serve_artifact import drawn, request, write


def finished(sweep: Path, number: int, artifact: Path, *overrides: str) -> None:
    records = Records.read(artifact)
    metrics = summarise(records).metrics()
    JobResult(
        "complete", number, records.meta.policy, overrides, "d1", str(artifact), False, "exact match", metrics, "run"
    ).write(sweep / str(number))


def mean(interval: ConfidenceInterval | None) -> float | None:
    return interval and interval.mean


@pytest.fixture
def sweep(tmp_path):
    """Three complete jobs, one that failed, one killed while it served, and one before it wrote anything."""
    folder = tmp_path / "sweep"
    for number, (policy, share, right) in enumerate(
        [("edge_centric", 0, 0.25), ("synera", 0.2, 0.5), ("synera", 0.8, 1)]
    ):
        artifact = drawn(tmp_path / f"serve{number}", policy, share, right=right, n=24)
        finished(folder, number, artifact, f"+policy={policy}", f"policy.offload.budget={share}", "network=lte")
    JobResult("failed", 3, "sled", ("policy=sled", "network=lte"), error="does not fit:\n  70 GB").write(folder / "3")
    JobResult("running", 10, "wisp", ("policy=wisp", "network=lte")).write(folder / "10")
    (folder / "4" / ".hydra").mkdir(parents=True)
    (folder / "4" / ".hydra" / "overrides.yaml").write_text("- policy=hat\n- network=lte\n- cloud.api_key=s3cret\n")
    (folder / "figures").mkdir()
    return folder


def test_rows_are_in_job_order_with_the_result_of_each_job(sweep):
    rows = compare_jobs(sweep)
    assert [row.result.number for row in rows] == [0, 1, 2, 3, 4, 10]
    assert [row.problem for row in rows] == [None] * 3 + ["failed: does not fit: 70 GB"] + [comparison.NO_RESULT] * 2
    assert rows[4].result.overrides[-1] == "cloud.api_key=***"


def test_quality_is_paired_with_the_first_job(sweep):
    rows = compare_jobs(sweep)
    assert mean(rows[0].quality) == 0.25
    assert rows[0].difference is None
    assert mean(rows[1].difference) == 0.25
    assert mean(rows[2].difference) == 0.75
    assert 0 < rows[1].difference.low < 0.25 < rows[1].difference.high
    assert compare_jobs(sweep) == rows


def test_other_prompts_are_not_paired(sweep, tmp_path):
    scored = [request(name, ["cloud"], [1.0], quality=1.0) for name in "abc"]
    finished(sweep, 1, write(tmp_path / "other", scored), "policy=synera")
    row = compare_jobs(sweep)[1]
    assert mean(row.quality) == 1.0
    assert row.difference is None


def test_deleted_records_cost_only_the_interval(sweep, tmp_path):
    (tmp_path / "serve1" / "requests.parquet").unlink()
    row = compare_jobs(sweep)[1]
    assert (row.problem, row.quality) == (None, None)
    assert row.result.metrics["quality/mean"] == 0.5


def test_jobs_are_labelled_by_the_overrides_that_differ():
    jobs = [["+policy=sled", "network=lte", "seed=1"], ["policy=synera", "network=lte", "seed=1", "a.budget=0.2"]]
    assert differing_overrides(jobs) == [{"policy": "sled", "budget": "-"}, {"policy": "synera", "budget": "0.2"}]


def test_labels_are_the_shortest_distinct_ends_of_option_names():
    jobs = [["a.device.mode=1", "a.cloud.mode=2", "b.n=1"], ["a.device.mode=3", "a.cloud.mode=4", "b.n=2"]]
    assert list(differing_overrides(jobs)[0]) == ["device.mode", "cloud.mode", "n"]
    assert list(differing_overrides([["mode=1", "a.mode=1"], ["mode=2", "a.mode=2"]])[0]) == ["mode", "a.mode"]


def test_the_table_fits_and_holds_every_job(sweep):
    file = io.StringIO()
    comparison.print_table(sweep, file)
    text = file.getvalue()
    assert max(map(len, text.splitlines())) <= 100
    assert "3 of 6 jobs complete" in text
    assert "0.250 [0.083, 0.417]" in text
    assert "failed: does not fit: 70 GB" in text
    assert text.count(comparison.NO_RESULT) == 2


def test_the_file_has_every_metric_and_bound(sweep):
    path = comparison.write_csv(compare_jobs(sweep), sweep / "comparison.csv")
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert [row["status"] for row in rows] == ["complete"] * 3 + ["failed", "running", "running"]
    assert rows[1]["budget"] == "0.2"
    assert float(rows[1]["difference_low"]) < float(rows[1]["difference_mean"])
    assert float(rows[2]["latency/tbt_s/mean"]) > 0
    assert rows[3]["problem"] == "failed: does not fit: 70 GB"


def test_a_tradeoff_groups_points_by_names_and_labels_them_by_numbers(sweep):
    assert [(point.group, point.label) for point in comparison.tradeoff_points(compare_jobs(sweep))] == [
        ("edge_centric", "0"), ("synera", "0.2"), ("synera", "0.8")
    ]  # fmt: skip
    rows = [replace(row, choices={"network": "lte", "budget": "1"}) for row in compare_jobs(sweep)[:1]]
    assert comparison.tradeoff_points(rows)[0].group == "edge_centric, lte"


def test_the_secrets_of_a_recorded_job_are_masked(tmp_path):
    overrides = ("policy=sled", "a.token=s3cret")
    context = JobContext(tmp_path, Tracking(), {"policy": {"name": "sled"}}, overrides, number=2)
    job_result.running_result(context).write(tmp_path)
    assert job_result.read_result(tmp_path) == JobResult("running", 2, "sled", ("policy=sled", "a.token=***"))


def test_an_empty_sweep_folder_has_no_jobs(tmp_path):
    assert job_result.read_result(tmp_path) is None
