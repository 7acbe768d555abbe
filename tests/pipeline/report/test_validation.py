"""The error of a simulation against real runs."""

import json
from pathlib import Path

import pytest

from pipeline.report import validation
from tests.pipeline.report.serve_artifact import request, write


def test_a_statistic_that_is_zero_in_the_real_runs_has_no_relative_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer is shown at once: there is no time between its tokens."""
    monkeypatch.setattr(validation, "_draw", lambda *_: None)
    folders = [write(tmp_path / name, [request("a", ["cloud"] * 2, [at, at])]) for name, at in (("a", 0.5), ("b", 0.6))]
    validation.validate(tmp_path, real={"grpc": folders}, simulated={"grpc": folders[1]})
    found = json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
    assert found["grpc/TTFT/mean"] == pytest.approx(0.6 / 0.55 - 1)
    assert "grpc/TBT/mean" not in found
    lines = [line.split() for line in (tmp_path / "validation.txt").read_text(encoding="utf-8").splitlines()]
    assert ["TBT,", "ms", "mean", "0", "-", "0", "-", "±", "5.0", "%"] in lines
