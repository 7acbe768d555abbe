"""A toy corpus and a toy pair, made once for all tests of this folder: they run, they are not good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from serving.progress import silent
from training.embedded_pair import corpus, stages
from training.embedded_pair.model_config import LlamaSizes
from training.fitting.recipe import LMRecipe
from training.fitting.trainer import Trainer


@pytest.fixture(scope="session")
def one_thread() -> Trainer:
    return Trainer(threads=1, precision="fp32")


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[str], Path]:
    """A new empty directory of a name."""

    def make(name: str) -> Path:
        (tmp_path / name).mkdir()
        return tmp_path / name

    return make


@pytest.fixture(scope="session")
def toy_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("corpus")
    corpus.build(
        out, progress=silent, train_items=600, validation_items_per_task=4, test_items_per_task=8, vocab_size=700
    )
    return out


@pytest.fixture(scope="session")
def toy_pair(toy_corpus: Path, one_thread: Trainer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(large, small) checkpoints of a few steps."""
    large, small, *work = (tmp_path_factory.mktemp(name) for name in ("large", "small", "work", "work"))
    stages.train(
        large,
        work=work[0],
        progress=silent,
        corpus=toy_corpus,
        architecture=LlamaSizes(hidden_size=64, layers=8, heads=2, intermediate_size=128),
        recipe=LMRecipe(steps=8, batch_size=4, warmup_steps=2),
        trainer=one_thread,
    )
    stages.train(
        small,
        work=work[1],
        progress=silent,
        corpus=toy_corpus,
        teacher=large,
        architecture=LlamaSizes(hidden_size=32, layers=4, heads=2, intermediate_size=64),
        recipe=LMRecipe(steps=6, batch_size=4, warmup_steps=2, distillation_weight=0.7),
        trainer=one_thread,
    )
    return large, small
