"""Traces of two toy targets' answers, made once: one that was trained, a little, and one that is random, but varied."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.core.decoding import Decoding
from serving.engines.models import Checkpoint
from serving.engines.torch.model import DecomposedModel, load_model
from serving.progress import silent
from serving.workload.datasets.tiny import TinyTasks
from serving.workload.workload import Workload
from tests.support.conf_files import architecture
from training.hat import trace
from training.hat.stages import record_hidden_states


@pytest.fixture(scope="session")
def toy_cloud(toy_pair: tuple[Path, Path]) -> Checkpoint:
    return Checkpoint(path=toy_pair[0])


@pytest.fixture(scope="session")
def toy_workload(toy_corpus: Path) -> Workload:
    """The workload that a toy run is profiled on."""
    tasks = TinyTasks(corpus=toy_corpus, split="validation")
    return Workload(dataset=tasks, num_prompts=12, max_prompt_tokens=192, max_new_tokens=12)


@pytest.fixture(scope="session")
def wild_cloud(toy_cloud: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Weights so large that hardly a token follows itself."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    out = tmp_path_factory.mktemp("wild")
    config = AutoConfig.from_pretrained(toy_cloud.name_or_path, initializer_range=0.3, tie_word_embeddings=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(out)
    AutoTokenizer.from_pretrained(toy_cloud.name_or_path).save_pretrained(out)
    return Checkpoint(path=out)


def recorded(out: Path, cloud: Checkpoint, workload: Workload) -> Path:
    record_hidden_states(
        out,
        progress=silent,
        cloud=cloud,
        timed_architecture=architecture("llama2_7b"),
        shallow_layers=8,
        workload=workload,
        decoding=Decoding(),
        prompt_factor=4,
    )
    return out


@pytest.fixture(scope="session")
def hidden(toy_cloud: Checkpoint, toy_workload: Workload, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of the trained target."""
    return recorded(tmp_path_factory.mktemp("hidden"), toy_cloud, toy_workload)


@pytest.fixture(scope="session")
def wild_hidden(wild_cloud: Checkpoint, toy_workload: Workload, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of the random target."""
    return recorded(tmp_path_factory.mktemp("wild_hidden"), wild_cloud, toy_workload)


@pytest.fixture(scope="session")
def found(wild_hidden: Path) -> trace.HiddenStateTrace:
    return trace.read(wild_hidden)


@pytest.fixture(scope="session")
def model(wild_cloud: Checkpoint) -> DecomposedModel:
    """The random target."""
    return load_model(wild_cloud.name_or_path)


@pytest.fixture(scope="session")
def toy_model(toy_cloud: Checkpoint) -> DecomposedModel:
    return load_model(toy_cloud.name_or_path)
