"""The metrics of a job's stages in a sweep."""

import json

from pipeline.report import comparison, job
from pipeline.report.context import JobContext, StageRun
from pipeline.report.exhibit import Exhibit
from pipeline.report.exhibit.jobs import rows_of_jobs
from pipeline.report.exhibit.schema import ExhibitColumn, RowTemplate
from pipeline.report.mlflow_store import Tracking


def reported(tmp_path, number: int, alpha: float) -> None:
    """A job of a sweep that ended with a report stage of its own."""
    artifact, folder = tmp_path / f"stage{number}", tmp_path / "sweep" / str(number)
    artifact.mkdir()
    (artifact / "metrics.json").write_text(json.dumps({"alpha": alpha}))
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
