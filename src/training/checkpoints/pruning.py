"""Drops layers of a causal LM, those first that change the hidden state least.

A layer's influence is 1 minus the mean cosine similarity of the states before and behind it (Men et al., ShortGPT,
2024, section 3.1, Block Influence).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
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


def load_pruned(checkpoint: str | Path, layers: Sequence[int]) -> Any:
    """The checkpoint in fp32 with these layers alone, as a model of `transformers`.

    Raises ValueError for a model without layers at `model.layers`.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    blocks = getattr(getattr(model, "model", None), "layers", None)
    if blocks is None:
        raise ValueError(
            f"{checkpoint} is a {type(model).__name__}, which has no layers at model.layers; give a Llama-like one"
        )
    model.model.layers = torch.nn.ModuleList(blocks[layer] for layer in layers)
    for index, block in enumerate(model.model.layers):
        block.self_attn.layer_idx = index
    _shorten_config(model.config, layers)
    return model


def _shorten_config(config: Any, layers: Sequence[int]) -> None:
    config.num_hidden_layers = len(layers)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        config.layer_types = [kinds[layer] for layer in layers]
