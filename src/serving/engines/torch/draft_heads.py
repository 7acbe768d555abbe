"""HAT's draft model: a target's first layers, one self-attention module, the target's head (section 3.4)."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from serving.engines.torch.model import Model


class Silent(nn.Module):
    """Stands where a layer has its MLP, and adds nothing."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(hidden)


def blank(model: Model, shallow: int) -> nn.Module:
    """A decoder layer without its MLP, to run behind the first `shallow` layers: norm, self-attention, residual.

    Its weights are a copy of those of the layer that it takes the place of, or of the last one before where the model
    has no more.
    """
    layer = deepcopy(model.layers[min(shallow, len(model.layers) - 1)])
    layer.mlp, layer.post_attention_layernorm = Silent(), nn.Identity()
    for module in layer.modules():
        if hasattr(module, "layer_idx"):
            module.layer_idx = shallow  # type: ignore[assignment]
    return layer


def attached(model: Model, shallow: int, adapter: nn.Module) -> Model:
    """The draft model."""
    layers, windows = model.layers[:shallow], model.windows[:shallow]
    return replace(model, layers=(*layers, adapter), windows=(*windows, windows[-1]))


def drafter(model: Model, shallow: int, weights: Path) -> Model:
    """The draft model with the trained `weights`.

    Raises ValueError that names the file when it is missing, damaged, or of another model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    adapter = blank(model, shallow)
    try:
        adapter.load_state_dict(load_file(weights))
    except (OSError, SafetensorError, RuntimeError) as problem:
        raise ValueError(f"adapter {weights} does not fit {model.name} ({problem}); train it for this model") from None
    return attached(model, shallow, adapter.to(device=model.device, dtype=model.dtype).eval())
