"""How little each layer of a causal LM changes the hidden state: what may be dropped first.

A layer's influence is 1 minus the mean cosine similarity of the states before and behind it (Men et al., ShortGPT,
2024, section 3.1, Block Influence).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from serving.progress import Progress


@torch.inference_mode()
def layer_influences(model: Any, texts: Sequence[Tensor], progress: Progress) -> list[float]:
    """One influence a layer, the mean over the texts' tokens."""
    totals = [0.0] * len(model.model.layers)
    for number, text in enumerate(texts, 1):
        with _observed(model, totals):
            model.model(input_ids=text[None].long().to(model.device), use_cache=False)
        progress(number, len(texts), "texts read")
    num_tokens = sum(map(len, texts))
    return [total / num_tokens for total in totals]


@contextmanager
def _observed(model: Any, totals: list[float]) -> Iterator[None]:
    """Adds to `totals` what every layer changes."""

    def hook(index: int) -> Any:
        def observe(_: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
            behind = output[0] if isinstance(output, tuple) else output
            totals[index] += float((1 - torch.cosine_similarity(inputs[0].float(), behind.float(), dim=-1)).sum())

        return observe

    handles = [layer.register_forward_hook(hook(index)) for index, layer in enumerate(model.model.layers)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def kept_layers(influences: Sequence[float], keep: int) -> tuple[int, ...]:
    """The `keep` layers of the most influence, in their order. Raises ValueError for a number that is not below all."""
    if not 0 < keep < len(influences):
        raise ValueError(f"keep is {keep}; the model has {len(influences)} layers: keep 1 or more, not all")
    order = sorted(range(len(influences)), key=lambda layer: -influences[layer])
    return tuple(sorted(order[:keep]))
