"""Rows whose drafts and whose time are of unlike pairs of models are said to be, and decide no claim."""

import io
import json
from pathlib import Path

import pytest

from pipeline.report import comparison
from pipeline.report import job as report
from pipeline.report.context import JobContext
from pipeline.report.exhibit import Exhibit
from pipeline.report.exhibit.schema import Claim, ExhibitColumn, RowTemplate
from pipeline.report.exhibit.sweep import SweepExhibit
from pipeline.report.mlflow_store import Tracking
from pipeline.report.table import plain_lines
from tests.pipeline.report.serve_artifact import request, write

pytestmark = pytest.mark.usefixtures("undrawn")

SAID = "hypothetical: the drafts are those of a model with 0.84 of its target's weights, and timed as of one with 0.08"


def test_a_hypothetical_row_is_shown_and_stays_out_of_verdicts(tmp_path: Path) -> None:
    for number, (policy, hypothetical) in enumerate([("sled", SAID), ("cloud_centric", "")]):
        artifact = write(tmp_path / policy, [request("r0", ["cloud"], [0.1 + number])], hypothetical=hypothetical)
        context = JobContext(
            tmp_path / "sweep" / str(number), Tracking(uri="none"), {"policy": {"name": policy}},
            (f"policy={policy}",), number=number, sweep=tmp_path / "sweep",
        )  # fmt: skip
        done = report.report_job(artifact, context, io.StringIO())
        assert (SAID in " ".join(done.text.split())) == bool(hypothetical)
    claims = (
        Claim("drafts are faster", "sled", "TTFT", "below", baseline="cloud_centric"),
        Claim("the cloud answers within a second and a half", "cloud_centric", "TTFT", "at_most", value=1.5),
    )
    exhibit = Exhibit("t", (ExhibitColumn("TTFT", "latency/ttft_s/mean"),), rows=RowTemplate("{policy}"), claims=claims)
    jobs = comparison.compare_jobs(tmp_path / "sweep")
    shown = SweepExhibit(exhibit).write(jobs, tmp_path / "sweep")
    text = " ".join("\n".join(plain_lines(shown.parts)).split())
    assert f"sled: {SAID}" in text
    assert "not evaluated drafts are faster: 'sled' is hypothetical" in text
    assert "holds the cloud answers within a second and a half" in text
    rows = json.loads((tmp_path / "sweep" / "exhibit.json").read_text(encoding="utf-8"))["rows"]
    assert {row["row"]: row["hypothetical"] for row in rows} == {"sled": SAID, "cloud_centric": ""}
