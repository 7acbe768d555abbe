"""Reports of runs on sealed prompts say how many runs have used them."""

import io
from pathlib import Path

from pipeline.report import job as report
from pipeline.report.context import JobContext
from pipeline.report.mlflow_store import Tracking
from tests.pipeline.report.serve_artifact import request, write


def said(outputs: Path, name: str, evaluation: str = "sealed", dataset: str = "gsm8k.GSM8K") -> str:
    artifact = write(outputs / "artifacts" / "serve" / name, [request("r0", ["cloud"], [0.1])])
    config = {"dataset": {"_target_": f"serving.workload.datasets.{dataset}", "evaluation": evaluation}}
    context = JobContext(outputs / "job", Tracking(uri="none"), {"policy": {"name": "sled"}, "workload": config})
    return " ".join(report.print_report(artifact, context, io.StringIO()).text.split())


def made(count: int, dataset: str = "gsm8k") -> str:
    artifacts = "1 artifact of these outputs was" if count == 1 else f"{count} artifacts of these outputs were"
    return f"the sealed half of {dataset}; {artifacts} made from it"


def test_each_run_on_sealed_prompts_counts_once(tmp_path: Path) -> None:
    assert made(1) in said(tmp_path, "first")
    assert made(2) in said(tmp_path, "second")
    assert made(2) in said(tmp_path, "second")  # a cached run that is reported again
    assert made(1, "xsum") in said(tmp_path, "third", dataset="xsum.XSum")
    assert (tmp_path / "sealed_uses.txt").read_text().split("\n") == ["gsm8k first", "gsm8k second", "xsum third", ""]


def test_runs_on_open_prompts_leave_no_trace(tmp_path: Path) -> None:
    assert "sealed" not in said(tmp_path, "first", evaluation="open")
    assert not (tmp_path / "sealed_uses.txt").exists()
