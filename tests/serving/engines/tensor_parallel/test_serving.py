"""A sharded model, loaded as part of a pair and served by the pipeline."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from serving.deployment.model_loading import load_models
from serving.engines.models import Checkpoint, ModelConfig
from serving.messages import ForwardWork, SequenceSlice, Span
from tests.support.conf_files import architecture
from tests.support.tiny_models import save_checkpoint

WHOLE = Span(0, 3, embedding=True, lm_head=True)


@pytest.mark.slow
def test_the_device_part_of_a_sharded_model_is_loaded_too(tmp_path: Path) -> None:
    small = Checkpoint(path=save_checkpoint(tmp_path / "small"))
    large = {
        "path": save_checkpoint(tmp_path / "large", layers=3, hidden=32),
        "timed_architecture": architecture("llama2_13b"),
    }
    alone, both = (load_models(small, ModelConfig(**large, tensor_parallel=ways)) for ways in (1, 2))
    try:
        asked = ForwardWork(WHOLE, (SequenceSlice("s", 0, 3, (2, 3, 4), 0, "greedy"),), ("last",))
        wanted = alone.cloud.execute(asked)
        for engine in (both.cloud, both.device_target, both.cloud):
            assert engine.execute(asked) == wanted
    finally:
        both.close()
    with pytest.raises(RuntimeError, match="told to stop"):
        both.cloud.execute(asked)


@pytest.mark.slow
def test_a_sharded_model_writes_the_same_text_when_served(tmp_path: Path) -> None:
    alone = served(tmp_path, 1, "emulated")
    assert len(alone) > 4
    for runtime in ("emulated", "grpc"):
        assert served(tmp_path, 2, runtime) == alone


def served(out: Path, ways: int, runtime: str) -> list[list[int]]:
    """The tokens of all answers."""
    words = [
        "+policy=cloud_centric",
        "model=toy",
        "workload=smoke",
        f"model.cloud.tensor_parallel={ways}",
        f"runtime={runtime}",
    ]
    folder = out / "artifacts" / "serve"
    before = set(folder.glob("*"))
    subprocess.run(
        [sys.executable, "-m", "pipeline", *words, f"outputs={out}"], check=True, capture_output=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    (made,) = set(folder.glob("*")) - before
    tokens: list[list[int]] = pq.read_table(made / "requests.parquet").sort_by("request")["tokens"].to_pylist()
    return tokens
