"""Facts about this machine that measured times depend on, and the cost of one decoded token."""

import platform
import time
from typing import TYPE_CHECKING

import torch

from native.machine import processor, usable_cores
from training.fitting.trainer import has_fast_bf16

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def machine_info() -> dict[str, str | int | bool]:
    """Processor, cores that this process may use, whether bf16 is fast, and versions."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "avx512_bf16": has_fast_bf16(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


CONTEXT_TOKENS, REPEATS = 64, 100


def num_parameters(model: "PreTrainedModel") -> int:
    """Weights that a decoded token is multiplied with: all; a tied embedding counts once, as the head."""
    return sum(weight.numel() for weight in model.parameters())


@torch.no_grad()
def decode_ms(model: "PreTrainedModel") -> float:
    """The fastest of a hundred forwards of one token after a context of 64, in milliseconds, on one thread."""
    from transformers import DynamicCache

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cache = DynamicCache()
        model(torch.ones((1, CONTEXT_TOKENS), dtype=torch.long), past_key_values=cache)
        return min(_decode_step_s(model, cache) for _ in range(REPEATS)) * 1000
    finally:
        torch.set_num_threads(threads)


def _decode_step_s(model: "PreTrainedModel", cache: object) -> float:
    began = time.perf_counter()
    model(torch.ones((1, 1), dtype=torch.long), past_key_values=cache)
    return time.perf_counter() - began
