"""From job folders to a printed exhibit: rows, pooled seeds, failed jobs, files, figure."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from pipeline.report import comparison, sweep
from pipeline.report.exhibit import Exhibit
from pipeline.report.exhibit.jobs import rows_of_jobs
from pipeline.report.exhibit.plot import build_panels
from pipeline.report.exhibit.rows import RenderedExhibit
from pipeline.report.exhibit.schema import Claim, ExhibitColumn, ExhibitFigure, RelativeTo, RowTemplate
from pipeline.report.exhibit.sweep import SweepExhibit
from pipeline.report.job_result import JobResult
from pipeline.report.mlflow_store import Tracking
from pipeline.report.records import Records
from pipeline.report.summary import summarise
from pipeline.report.table import plain_lines
from tests.pipeline.report.serve_artifact import drawn

EXHIBIT = Exhibit(
    "Fig. 14: what a budget buys",
    (
        ExhibitColumn("quality"),
        ExhibitColumn("TBT, ms", "latency/tbt_s/mean", 1000),
        ExhibitColumn("cost of 0.8", "cost/verified_s", relative=RelativeTo("budget 0.8")),
        ExhibitColumn("tokens/s", "throughput/tokens_per_s"),
    ),
    rows=RowTemplate("budget {policy.offload.budget}", group="{pair}", pool_over="training.seed"),
    reported={"small": {"budget 0.2": {"quality": 0.61, "cost of 0.8": "small"}, "budget 0.9": {"quality": 0.7}}},
    figure=ExhibitFigure("{policy.offload.budget}", ("quality", "TBT, ms"), log_x=True),
    claims=(
        Claim("0.8 is better than 0.2", "budget 0.8", "quality", "above", baseline="budget 0.2"),
        Claim("0.2 costs less than 0.8", "budget 0.2", "cost of 0.8", "at_most", value=0.9),
        Claim("0.2 beats 0.4", "budget 0.2", "quality", "above", baseline="budget 0.4"),
    ),
    deviations=("the pair is ours",),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Budgets 0.2 and 0.8 with two seeds, of which one job failed, and 0.4, of which all did."""
    place = tmp_path_factory.mktemp("exhibit")
    number = 0
    for budget, right in (("0.2", 0.4), ("0.8", 0.9)):
        for seed in (0, 3):
            artifact = drawn(
                place / f"serve{number}", "synera", float(budget), right=right - seed / 100, n=40, seed=seed + 1
            )
            finished(place / "sweep", number, artifact, budget, seed)
            number += 1
    for budget in ("0.8", "0.4"):
        words = overrides(budget, 4)
        JobResult("failed", number, "synera", words, error="out of memory").write(place / "sweep" / str(number))
        number += 1
    return place / "sweep"


def overrides(budget: str, seed: int) -> tuple[str, ...]:
    return f"policy.offload.budget={budget}", f"training.seed={seed}"


def finished(place: Path, number: int, artifact: Path, budget: str, seed: int) -> None:
    metrics = summarise(Records.read(artifact)).metrics()
    JobResult(
        "complete", number, "synera", overrides(budget, seed), "d", str(artifact), False, "exact match", metrics
    ).write(place / str(number))


@pytest.fixture(scope="module")
def shown(folder: Path) -> RenderedExhibit:
    return RenderedExhibit.with_reported_rows(
        EXHIBIT, rows_of_jobs(EXHIBIT, comparison.compare_jobs(folder), {"pair": "small"})
    )


def test_jobs_become_rows_and_seeds_are_pooled(shown):
    assert [(line.group, line.label) for line in shown.rows] == [
        ("small", "budget 0.2"), ("small", "budget 0.8"), ("small", "budget 0.4"), ("small", "budget 0.9")
    ]  # fmt: skip
    quality = shown.measured_cell(shown.rows[0], EXHIBIT.columns[0])
    assert dict(quality.values) == {"0": 0.4, "3": 0.375}
    assert quality.interval.low < quality.value < quality.interval.high
    assert shown.rows[1].problem == "job 4 failed: out of memory"


def test_a_relative_column_is_one_in_its_own_row_and_paired_in_others(shown):
    own, other = (shown.measured_cell(line, EXHIBIT.columns[2]) for line in (shown.rows[1], shown.rows[0]))
    assert (own.value, own.interval.low, own.interval.high) == (1.0, 1.0, 1.0)
    assert 0 < other.interval.low < other.value < other.interval.high < 1


def test_the_printed_exhibit_has_rows_reported_values_and_claims(folder, tmp_path):
    made = SweepExhibit(EXHIBIT, {"pair": "small"}).write(comparison.compare_jobs(folder), tmp_path)
    text = "\n".join(plain_lines(made.parts))
    assert "Fig. 14: what a budget buys" in text
    assert "    0.61 | 0.388 [" in text
    assert "(0.375 to 0.400)" in text
    assert re.search(r"^small  budget 0.4 +job 5 failed: out of memory$", text, re.MULTILINE)
    assert "holds          0.8 is better than 0.2 (small): quality +0.500 [" in text
    assert "holds          0.2 costs less than 0.8 (small): cost of 0.8 -0." in text
    assert "not evaluated  0.2 beats 0.4 (small): no number of 'budget 0.4'" in text
    assert "differs  the pair is ours" in text
    assert "note     budget 0.8: job 4 failed: out of memory" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_exhibits_files_and_metrics_hold_the_printed_numbers(folder, tmp_path):
    made = SweepExhibit(EXHIBIT, {"pair": "small"}).write(comparison.compare_jobs(folder), tmp_path)
    assert [path.name for path in made.files] == ["exhibit.json", "exhibit.csv", "exhibit.png"]
    found = json.loads((tmp_path / "exhibit.json").read_text())
    assert found["rows"][0]["columns"]["quality"]["measured"]["by_replicate"] == {"0": 0.4, "3": 0.375}
    assert [claim["status"] for claim in found["claims"]] == ["holds", "holds", "not evaluated"]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "exhibit.csv").read_text())))
    assert rows[0]["quality reported"] == "0.61"
    assert float(rows[0]["quality low"]) < float(rows[0]["quality"])
    assert rows[3]["problem"] == "not run"
    assert made.metrics["exhibit/claims holds"] == 2
    assert made.metrics["exhibit/small/budget 0.2/quality"] == pytest.approx(0.3875)


def test_the_figure_has_measured_and_reported_lines(shown):
    quality, tbt = build_panels(shown, EXHIBIT.figure)
    assert [(mark.x, mark.y) for mark in quality.measured["small"]] == [
        (0.2, pytest.approx(0.3875)),
        (0.8, pytest.approx(0.8875)),
    ]
    assert [mark.y for mark in quality.reported["small"]] == [0.61]
    assert tbt.reported == {}
    assert quality.categories is None


def test_a_figure_over_names_has_one_place_per_name(shown):
    (panel,) = build_panels(shown, ExhibitFigure("{row}", "quality"))
    assert panel.categories == ["budget 0.2", "budget 0.8", "budget 0.9"]


def test_a_sweep_ends_with_its_exhibit(folder):
    file = io.StringIO()
    rows = sweep.finish_sweep(folder, Tracking(uri="none"), file, SweepExhibit(EXHIBIT, {"pair": "small"}))
    assert len(rows) == 6
    text = file.getvalue()
    assert text.index("jobs complete") < text.index("Fig. 14") < text.index("exhibit.png")


def test_deleted_records_cost_only_the_intervals(folder, tmp_path):
    artifact = drawn(tmp_path / "serve", "synera", 0.2, n=8)
    finished(tmp_path / "sweep", 0, artifact, "0.2", 0)
    (artifact / "requests.parquet").unlink()
    (line,) = rows_of_jobs(EXHIBIT, comparison.compare_jobs(tmp_path / "sweep"), {"pair": "small"})
    quality = line.measured["quality/mean"]
    assert quality.value > 0
    assert quality.interval is None
