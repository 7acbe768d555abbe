"""Reports of runs that are paced to chips say what their latencies are worth; those of other runs do not."""

import io
from pathlib import Path

import pytest

from pipeline.report import comparison
from pipeline.report import job as report
from pipeline.report.context import JobContext
from pipeline.report.exhibit import Exhibit
from pipeline.report.exhibit.schema import ExhibitColumn, RowTemplate
from pipeline.report.exhibit.sweep import SweepExhibit
from pipeline.report.job_result import read_result
from pipeline.report.mlflow_store import Tracking
from pipeline.report.table import plain_lines
from pipeline.report.validation import validate
from tests.pipeline.report.serve_artifact import drawn, request, write

pytestmark = pytest.mark.usefixtures("undrawn")

CHIPS = ["orin", "a6000"]
SAID = "transport check: the run replays the clock of orin and a6000; its latencies say nothing about real chips"
OFF = Tracking(uri="none")


def reported(tmp_path: Path, chips: list[str], tracking: Tracking = OFF) -> report.JobReport:
    rows = [request("r0", ["device", "cloud"], [0.1, 0.2], device_busy_s=0.1)]
    artifact = write(tmp_path / "serve", rows, replayed_chips=chips)
    sweep = tmp_path / "sweep"
    context = JobContext(
        sweep / "0", tracking, {"policy": {"name": "synera"}}, ("policy=synera",), number=0,
        sweep=None if tracking.enabled else sweep,
    )  # fmt: skip
    return report.report_job(artifact, context, io.StringIO())


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_paced_runs_report_begins_with_it(tmp_path: Path) -> None:
    done = reported(tmp_path, CHIPS)
    title, _, _, first, second, *_ = done.text.lstrip("\n").splitlines()
    assert title.startswith("synera")
    assert words(f"{first} {second}") == f"note {SAID}"
    found = read_result(tmp_path / "sweep" / "0")
    assert found is not None
    assert found.transport_check == SAID


def test_other_runs_do_not_say_it(tmp_path: Path) -> None:
    done = reported(tmp_path, [])
    assert "transport check" not in done.text
    assert done.result.transport_check == ""


def test_mlflow_has_it_as_a_tag(tmp_path: Path, tracking: Tracking) -> None:
    done = reported(tmp_path, CHIPS, tracking)
    client, _ = tracking.connect()
    assert done.result.run_id is not None
    assert client.get_run(done.result.run_id).data.tags["tandem.transport_check"] == SAID


@pytest.mark.parametrize("chips", [CHIPS, []])
def test_exhibits_and_comparisons_of_paced_runs_carry_it_as_a_note(tmp_path: Path, chips: list[str]) -> None:
    reported(tmp_path, chips)
    rows = comparison.compare_jobs(tmp_path / "sweep")
    exhibit = Exhibit("Table 1", (ExhibitColumn("TTFT", "latency/ttft_s/mean"),), rows=RowTemplate("{policy}"))
    made = SweepExhibit(exhibit).write(rows, tmp_path)
    for parts in (made.parts, comparison.comparison_parts(rows)):
        assert (f"note {SAID}" in words("\n".join(plain_lines(parts)))) == bool(chips)


@pytest.mark.parametrize("chips", [CHIPS, []])
def test_validations_of_paced_runs_carry_it(tmp_path: Path, chips: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.report.validation._draw", lambda *_: None)  # takes seconds
    real, simulated = drawn(tmp_path / "real"), drawn(tmp_path / "simulated")
    if chips:
        meta = (real / "meta.json").read_text()
        (real / "meta.json").write_text(meta[:-1] + ', "replayed_chips": ["orin", "a6000"]}')
    validate(tmp_path, real={"grpc": [real, real]}, simulated={"grpc": simulated})
    text = words((tmp_path / "validation.txt").read_text())
    assert text.count(SAID) == bool(chips)
