"""What one decoded token costs: weights touched, and milliseconds on one thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONTEXT, REPEATS = 64, 100


def weights(model: PreTrainedModel) -> int:
    """Weights that a decoded token multiplies with: all of them, a tied embedding once (as the head)."""
    return sum(weight.numel() for weight in model.parameters())


@torch.no_grad()
def decode_ms(model: PreTrainedModel) -> float:
    """The fastest of a hundred forwards of one token after a context of 64, in milliseconds, on one thread."""
    from transformers import DynamicCache

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cache = DynamicCache()
        model(torch.ones((1, CONTEXT), dtype=torch.long), past_key_values=cache)
        return min(_one_token_s(model, cache) for _ in range(REPEATS)) * 1000
    finally:
        torch.set_num_threads(threads)


def _one_token_s(model: PreTrainedModel, cache: object) -> float:
    began = time.perf_counter()
    model(torch.ones((1, 1), dtype=torch.long), past_key_values=cache)
    return time.perf_counter() - began
