"""Batch invariance: what a model computes for a token does not depend on the tokens that are computed with it.

A kernel chooses the order of its additions by the shape of a product, so a verified token is rounded otherwise than a
decoded one. Here every linear layer multiplies blocks of `BLOCK_ROWS` rows, filled up with zeros, and every query
attends alone (He, Defeating Nondeterminism in LLM Inference, 2025; its blocks are inside kernels).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.functional import pad
from torch.nn.functional import scaled_dot_product_attention as sdpa

BLOCK_ROWS = 8
"""As many as a round of drafts has; a single row takes the time of so many."""
VECTOR_COLUMNS = 64
"""Kernels of elementwise functions compute what is left of a row behind so many numbers otherwise."""
Function = Callable[[torch.Tensor], torch.Tensor]


def use_blocks(causal: Any) -> None:
    """Makes every linear layer and activation of a `transformers` model compute in blocks of rows."""
    from transformers.activations import ACT2CLS

    found = (entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values())
    activations = tuple(kind for kind in found if isinstance(kind, type))
    for module in causal.modules():
        if isinstance(module, torch.nn.Linear):
            _compute_by(_in_blocks, module)
        elif isinstance(module, activations):
            _compute_by(_in_full_vectors, module)


def _compute_by(blocks: Callable[..., torch.Tensor], module: Any) -> None:
    module.forward = partial(_forward_by, blocks, module)


def _forward_by(blocks: Callable[..., torch.Tensor], module: Any, hidden: torch.Tensor) -> torch.Tensor:
    """The class is looked up at each call: weights are packed later."""
    return blocks(partial(type(module).forward, module), hidden)


def _in_blocks(whole: Function, hidden: torch.Tensor) -> torch.Tensor:
    """`whole` of (..., tokens, features), block by block of tokens."""
    rows = hidden.reshape(-1, hidden.shape[-1])
    filled = pad(rows, (0, 0, 0, -len(rows) % BLOCK_ROWS))
    found = torch.cat([whole(block) for block in torch.split(filled, BLOCK_ROWS)])
    return found[: len(rows)].reshape(*hidden.shape[:-1], -1)


def _in_full_vectors(whole: Function, hidden: torch.Tensor) -> torch.Tensor:
    """An elementwise function of (..., tokens, features), block by block of tokens."""
    num_columns = hidden.shape[-1]
    return _in_blocks(whole, pad(hidden, (0, -num_columns % VECTOR_COLUMNS)))[..., :num_columns]


def attend_alone(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Attention of each query to the keys that it sees, as if it were the only one.

    Shapes as in `attention.AttentionKernel`.
    """
    grouped, num_rows, total = query.shape[1] != keys.shape[1], query.shape[2], keys.shape[2]
    parts = []
    for row in range(num_rows):
        seen = slice(total - num_rows + row + 1) if mask is None else _visible(mask[row])
        own = query[:, :, row : row + 1]
        parts.append(sdpa(own, keys[:, :, seen], values[:, :, seen], scale=scaling, enable_gqa=grouped))
    return parts[0] if num_rows == 1 else torch.cat(parts, 2)


def _visible(mask: torch.Tensor) -> slice | torch.Tensor:
    """The keys that a row sees: a range, or places for a node of a tree."""
    places = (mask == 0).nonzero()[:, 0]
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first + 1 == len(places) else places
