"""A causal LM of some of another one's layers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


def load_pruned(checkpoint: str | Path, layers: Sequence[int]) -> Any:
    """The checkpoint in fp32 with these layers alone, as a model of `transformers`.

    Raises ValueError for a checkpoint whose layers are not at `model.layers`.
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
