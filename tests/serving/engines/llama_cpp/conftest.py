"""A tiny Llama and its GGUF file."""

from pathlib import Path

import pytest

from serving.engines.llama_cpp.context import LlamaModel
from tests.support.tiny_models import save_byte_level

MISSING = "cyllama and gguf are not installed (the extra llama_cpp): models on llama.cpp are not tested"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_byte_level(tmp_path_factory.mktemp("llama_cpp") / "model", 3, 1)


@pytest.fixture(scope="session")
def gguf_file(checkpoint: Path) -> Path:
    pytest.importorskip("gguf", reason=MISSING)
    from serving.engines.llama_cpp.gguf import convert

    file = checkpoint.with_suffix(".gguf")
    convert(checkpoint, file)
    return file


@pytest.fixture(scope="session")
def model(gguf_file: Path) -> LlamaModel:
    pytest.importorskip("cyllama", reason=MISSING)
    return LlamaModel(gguf_file)
