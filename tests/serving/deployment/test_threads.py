"""The CPU threads of each side's model: which process uses how many, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.deployment.engine_factory import num_threads
from serving.deployment.model_loading import load_models, load_side
from serving.deployment.setup import Setup
from serving.engines.models import Checkpoint, ModelConfig
from serving.engines.torch.tensor_store import TensorStore
from tests.support.conf_files import architecture
from tests.support.fake_setup import setup


class FoundError(Exception):
    """Ends a loading when the number of threads is known."""


@pytest.fixture
def unlike(monkeypatch: pytest.MonkeyPatch) -> Setup:
    """A setup whose cloud has three threads, in a process that loads nothing."""

    def stop(count: int) -> None:
        raise FoundError(count)

    loading = "serving.deployment.model_loading"
    monkeypatch.setattr("torch.set_num_threads", stop)
    monkeypatch.setattr(f"{loading}.load_tokenizer", lambda *_: (None, 997))
    monkeypatch.setattr(f"{loading}.num_layers", lambda *_: 8)
    made = setup("sled")
    return replace(made, pair=replace(made.pair, cloud=replace(made.pair.cloud, threads=3)))


@pytest.mark.parametrize(("side", "threads"), [("device", "1"), ("cloud", "3")])
def test_the_process_of_a_side_has_its_own_threads(unlike: Setup, side: Any, threads: str) -> None:
    with pytest.raises(FoundError, match=threads):
        load_side(unlike, side, TensorStore())


def test_one_process_for_both_has_as_many_as_either_asks_for(unlike: Setup) -> None:
    with pytest.raises(FoundError, match="3"):
        load_models(unlike.pair.device, unlike.pair.cloud)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"threads": 0}, "threads is 0; it is a number of CPU threads, 1 or more"),
        ({"threads": 2, "tensor_parallel": 2}, "tensor_parallel=2 computes on one thread a process"),
    ],
)
def test_threads_that_cannot_be_are_refused(how: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(timed_architecture=architecture("llama2_13b"), hub="a/model", **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parameters", "omp_num_threads", "threads"),
    [(130_000_000, "", 3), (130_000_000, "2", 2), (6_000_000, "", 1)],
    ids=["large", "within a sweep's worker", "small"],
)
def test_a_stage_computes_a_large_model_on_all_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, parameters: int, omp_num_threads: str, threads: int
) -> None:
    factory = "serving.deployment.engine_factory"
    monkeypatch.setenv("OMP_NUM_THREADS", omp_num_threads)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1, 2})
    monkeypatch.setattr(f"{factory}.num_parameters", lambda _path: parameters)
    monkeypatch.setattr("serving.engines.models.check_checkpoint", lambda *_: None)
    assert num_threads(Checkpoint(path=tmp_path)) == threads
