"""Tiny random models of every architecture that the engine knows."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.tiny_models import VOCABULARY, build_model


@pytest.fixture(scope="session")
def causal() -> Callable[..., Any]:
    """A fresh `transformers` model: causal(variant, seed=0, **settings)."""
    return build_model


@pytest.fixture(scope="session")
def scattered() -> Callable[..., Any]:
    """A pool in which every other block is taken: scattered(model, block_tokens=2, blocks=120)."""
    from serving.engines.torch.kv_pool import BlockBudget, KVPool

    def make(model: Any, block_tokens: int = 2, blocks: int = 120) -> KVPool:
        pool = KVPool(model, 4, block_tokens, BlockBudget(blocks))
        tables: list[Any] = [[] for _ in range(blocks)]
        for table in tables:
            pool.extend(table, 1)
        for table in tables[::2]:
            pool.free_last(table, 1)
        return pool

    return make


@pytest.fixture(scope="session")
def llama() -> Any:
    """A tiny Llama with `transformers`' own attention, to compare with; do not take it apart."""
    return build_model("llama")


@pytest.fixture
def llama_copy(llama: Any) -> Any:
    return copy.deepcopy(llama)


@pytest.fixture(scope="session")
def prompts() -> list[tuple[int, ...]]:
    """Prompts of very different lengths."""
    generator = torch.Generator().manual_seed(5)
    return [tuple(torch.randint(3, VOCABULARY, (n,), generator=generator).tolist()) for n in (1, 7, 33, 12)]
