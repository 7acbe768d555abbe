"""A command whose trainings run in two processes of Lightning's: the same artifacts as with one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from pipeline.artifacts.progress_display import NullObserver
from pipeline.artifacts.runner import Runner
from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import Store
from tests.programs.build_artifacts import graph


def train(outputs: Path, *words: str) -> str:
    """Trains the toy pair; what the command said."""
    command = [
        sys.executable, "-m", "pipeline", "+policy=co_llm", "model=toy", "workload=smoke", "stage=train",
        "tracking.uri=none", f"outputs={outputs}", "trainer.threads=1",
        "model.stages.cloud_model.recipe.steps=60",  # one checkpoint is saved on the way
        *words,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=outputs.parent)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
def test_two_processes_train_three_stages_as_one_does(tmp_path: Path) -> None:
    said = train(tmp_path / "two", "trainer.devices=2", "trainer.strategy=ddp")
    assert said.count("device_model: done in") == 1
    assert "waiting for" not in said
    train(tmp_path / "one")
    for name in ("cloud_model", "device_model", "co_llm"):
        (one,) = (tmp_path / "one" / "artifacts" / name).rglob("*.safetensors")
        (two,) = (tmp_path / "two" / "artifacts" / name).rglob("*.safetensors")
        wanted, found = load_file(one), load_file(two)
        assert one.relative_to(tmp_path / "one") == two.relative_to(tmp_path / "two")
        assert all((found[key] - wanted[key]).abs().max() < 1e-3 for key in wanted)


def test_a_helper_runs_the_stage_that_is_missing_and_builds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def call(stage: Stage, out: Path, *_: object) -> None:
        called.append(stage.name)
        (out / "result").write_text("of a helper")

    store = Store(tmp_path)
    Runner(store, call, NullObserver()).ensure_built(graph().inputs["model"].inputs["corpus"])
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(SystemExit, match="0"):
        Runner(store, call, NullObserver()).ensure_built(graph())
    assert called == ["corpus", "model"]
    assert not store.has(graph().inputs["model"])
    assert os.environ["LOCAL_RANK"] == "1"
