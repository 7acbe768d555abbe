"""The network of WISP's predictor while it is trained, and as the layers that are served."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from serving.core.scores import SCORES
from serving.learned.arrays import Floats
from serving.learned.mlp import Layer


def build(hidden: Sequence[int], batch_norm: bool, dropout: float, inputs: int = len(SCORES)) -> nn.Sequential:
    """Linear layers with ReLU, batch norm before it and dropout behind it where wanted; one logit comes out."""
    parts: list[nn.Module] = []
    width = inputs
    for size in hidden:
        parts.append(nn.Linear(width, size))
        if batch_norm:
            parts.append(nn.BatchNorm1d(size))
        parts.append(nn.ReLU())
        if dropout:
            parts.append(nn.Dropout(dropout))
        width = size
    return nn.Sequential(*parts, nn.Linear(width, 1))


@torch.no_grad()
def layers(network: nn.Sequential) -> tuple[Layer, ...]:
    """The linear layers, with every batch norm's running statistics folded into the one before it."""
    found: list[Layer] = []
    for part in network:
        if isinstance(part, nn.Linear):
            found.append((_array(part.weight), _array(part.bias)))
        elif isinstance(part, nn.BatchNorm1d):
            found[-1] = _folded(*found[-1], part)
    return tuple(found)


def _folded(weight: Floats, bias: Floats, norm: nn.BatchNorm1d) -> Layer:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor = _array(norm.weight) / _array(torch.sqrt(norm.running_var + norm.eps))
    return weight * factor[:, None], (bias - _array(norm.running_mean)) * factor + _array(norm.bias)


def _array(tensor: torch.Tensor) -> Floats:
    found: Floats = tensor.detach().cpu().float().numpy().copy()
    return found
