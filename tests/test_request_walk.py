"""How many source files one request visits between its arrival and its last token, on the virtual clock."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pipeline import api
from serving.drivers.simulator import Simulator

SERVING = str(Path(__file__).parents[1] / "src" / "serving")
MOST = 34
WORDS = (
    "policy=sled", "model=qwen3", "hardware=wisp", "workload=synthetic", "runtime=simulated",
    "runtime/outcomes=constant",
    "workload.num_prompts=1", "workload.devices=1", "workload.max_new_tokens=16", "tracking.uri=none",
)  # fmt: skip


def test_one_sled_request_visits_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visited: set[str] = set()
    run = Simulator.run

    def profiled(self: Simulator, *args: Any) -> Any:
        def hook(frame: FrameType, _event: str, _arg: object) -> None:
            if frame.f_code.co_filename.startswith(SERVING):
                visited.add(frame.f_code.co_filename)

        before = sys.getprofile()
        sys.setprofile(hook)
        try:
            return run(self, *args)
        finally:
            sys.setprofile(before)

    monkeypatch.setattr(Simulator, "run", profiled)
    with api.composed(*WORDS, f"outputs={tmp_path}") as cfg:
        api.run(cfg)
    assert 15 < len(visited) <= MOST, sorted(visited)
