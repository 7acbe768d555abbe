"""Exports that tests share: one of a small model with a router, made once for all processes of a test run."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from serving.engines.models import Checkpoint
from serving.engines.onnx.export import export
from serving.engines.onnx.header import HEADER_FILE
from serving.learned.router import TokenRouter
from tests.support.learned_models import LinearScorer
from tests.support.tiny_models import VOCABULARY, build_model
from tests.support.tiny_tokenizers import tokenizer_json

WORDS = " ".join(f"w{i}" for i in range(VOCABULARY - 2))


def saved(variant: str, folder: Path, **settings: object) -> Path:
    """A checkpoint with a tokenizer of numbered words."""
    build_model(variant, **settings).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer_json(WORDS))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


def made_router(hidden: int = 32, seed: int = 0) -> TokenRouter:
    draw = np.random.default_rng(seed)

    def layer(inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
        return draw.normal(size=(outputs, inputs)).astype("f4") / 4, draw.normal(size=outputs).astype("f4")

    mean, deviation = draw.normal(size=hidden).astype("f4"), draw.uniform(0.5, 2, hidden).astype("f4")
    return TokenRouter((layer(hidden, 8), layer(8, 1)), mean, deviation)


@pytest.fixture(scope="session")
def save() -> Callable[..., Path]:
    return saved


@pytest.fixture(scope="session")
def router() -> TokenRouter:
    return made_router()


@pytest.fixture(scope="session")
def shared(run_folder: Path) -> Path:
    return run_folder / "onnx"


@pytest.fixture(scope="session")
def checkpoint(shared: Path) -> Checkpoint:
    """Two layers, whose heads share keys; the second sees a window of eight tokens."""
    shared.mkdir(exist_ok=True)
    with FileLock(shared / "checkpoint.lock"):
        if not (shared / "mixed").exists():
            saved("qwen2_mixed", shared / "mixed", num_hidden_layers=2, max_window_layers=1)
    return Checkpoint(path=shared / "mixed")


@pytest.fixture(scope="session")
def exported(checkpoint: Checkpoint, router: TokenRouter, shared: Path) -> Path:
    """Its graph, which computes two scores, too."""
    folder = shared / "exported"
    with FileLock(shared / "exported.lock"):
        if not (folder / HEADER_FILE).exists():
            folder.mkdir(exist_ok=True)
            export(checkpoint, folder, [router, LinearScorer()], "one")
    return folder
