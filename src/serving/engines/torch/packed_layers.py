"""Decoder layers of Llama's kind in a dozen operations; on a CPU with weights packed once for oneDNN, where torch packs
them at each product.
"""

import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.functional import linear, rms_norm, silu

from serving.engines.torch.attention import Batch, attend
from serving.engines.torch.model import DecomposedModel, return_freed_memory

PACKED_FOR_ROWS = 16
"""The number of rows that the order of packed weights is chosen for; other numbers take no other order."""
MIN_PACKED = 2**18
"""Numbers of the smallest weight that is packed: calling oneDNN takes as long as torch takes for a smaller one."""
FEW_ROWS = 3
"""A pass of at most so many rows takes longer with packed fp32 weights on a CPU with AMX than with torch's own."""
FUSED = frozenset({"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"})
"""The `transformers` layers that become a `FusedLayer`."""


def pack_weights(model: DecomposedModel, rows: int | None = None, min_packed: int | None = None) -> None:
    """Packs the weights of the model's layers and head in place, where oneDNN computes their number format and is
    faster for passes of `rows` rows (None: many).

    A weight of fewer than `min_packed` numbers is left as it is; default: `smallest_packed`.

    Decoder layers of Llama's kind become `FusedLayer`, on a GPU, too, unless they are batch-invariant. A layer that
    models share is packed once. Sums are rounded otherwise than torch's own, by about 1e-5 of fp32 logits. Packed
    weights can no longer be read, so heads and adapters that are made of them are made before.
    """
    on_gpu = model.device.type == "cuda"
    if not on_gpu and (model.device.type != "cpu" or not packs(model.dtype)):
        return
    if min_packed is None:
        min_packed = smallest_packed(model.dtype, rows)
    for layer in model.layers:
        if type(layer).__name__ in FUSED and _is_plain(layer, model.dtype):
            _fuse(layer, sys.maxsize if on_gpu else min_packed)
            return_freed_memory()
    if on_gpu:
        return
    modules: Iterable[Any] = chain.from_iterable(part.modules() for part in (*model.layers, model.lm_head))
    for module in list(modules):
        if _packable(module, model.dtype) and module.weight.numel() >= min_packed:
            _pack(module)
    return_freed_memory()


def packs(dtype: torch.dtype) -> bool:
    """True if this machine's CPU multiplies packed weights of `dtype`."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


def smallest_packed(dtype: torch.dtype, rows: int | None) -> int:
    """Numbers of the smallest weight of `dtype` that is packed for passes of `rows` rows (None: many)."""
    few = rows is not None and rows <= FEW_ROWS
    amx = torch.cpu._is_amx_tile_supported()
    return sys.maxsize if few and dtype == torch.float32 and amx else MIN_PACKED


class Weight(Protocol):
    """The weight of a product of rows (..., inputs) with (outputs, inputs), and its bias."""

    def product(self, rows: torch.Tensor) -> torch.Tensor: ...

    def silu_of_product(self, rows: torch.Tensor) -> torch.Tensor: ...

    def product_plus(self, rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor: ...

    def product_times(self, rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor: ...


class PlainWeight:
    """A weight that torch packs at each product: of a small one, that takes less than calling oneDNN does."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        return linear(rows, self._weight, self._bias)

    def silu_of_product(self, rows: torch.Tensor) -> torch.Tensor:
        return silu(self.product(rows), inplace=True)

    def product_plus(self, rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.product(rows).add_(other)

    def product_times(self, rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.product(rows).mul_(other)


class PackedWeight:
    """A weight in the order in which oneDNN reads it."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS), bias

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        return self._product(rows, "none")

    def silu_of_product(self, rows: torch.Tensor) -> torch.Tensor:
        return self._product(rows, "swish")

    def product_plus(self, rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self._product_with(rows, other, "add")

    def product_times(self, rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self._product_with(rows, other, "mul")

    def _product(self, rows: torch.Tensor, activation: str) -> torch.Tensor:
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, activation, [], "")
        return found

    def _product_with(self, rows: torch.Tensor, other: torch.Tensor, operation: str) -> torch.Tensor:
        multiply = torch.ops.mkldnn._linear_pointwise.binary
        found: torch.Tensor = multiply(rows, other, self._weight, self._bias, operation)
        return found


def make_weight(weight: torch.Tensor, bias: torch.Tensor | None, min_packed: int) -> Weight:
    """A packed weight, or a plain one if it has fewer numbers than `min_packed`."""
    kind = PackedWeight if weight.numel() >= min_packed else PlainWeight
    return kind(weight.detach(), None if bias is None else bias.detach())


class PackedLinear(nn.Linear):
    """A linear layer that has a `packed_weight` in place of `weight`, which is None."""

    packed_weight: Weight

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name that torch gives it
        return self.packed_weight.product(input)


class FusedLayer(nn.Module):
    """A decoder layer of Llama's kind: queries, keys and values are one product, rotated together; the activation, the
    gate and both residual sums are computed with the products before them.
    """

    input_layernorm: Any
    post_attention_layernorm: Any
    self_attn: Any
    products: dict[str, Weight]

    def forward(
        self,
        hidden: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        packed: Batch,
        attention_mask: None = None,  # noqa: ARG002 - the name `transformers` gives it; masks come in `packed`
    ) -> torch.Tensor:
        """Hidden states of shape (1, tokens, hidden size); the cosines and sines have (1, tokens, head size)."""
        products = self.products
        attended = self._attend(
            products["qkv"].product(_norm(self.input_layernorm, hidden)), position_embeddings, packed
        )
        hidden = products["o"].product_plus(attended, hidden)
        normed = _norm(self.post_attention_layernorm, hidden)
        gated = products["up"].product_times(normed, products["gate"].silu_of_product(normed))
        return products["down"].product_plus(gated, hidden)

    def _attend(
        self, qkv: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor], packed: Batch
    ) -> torch.Tensor:
        attention = self.self_attn
        size = attention.head_dim
        heads = qkv.view(*qkv.shape[:2], -1, size)
        kv_heads = heads.shape[2] // (attention.num_key_value_groups + 2)
        queries = heads.shape[2] - 2 * kv_heads
        turned = _rotate(self._norm_heads(heads[:, :, :-kv_heads], queries), *position_embeddings)
        out, _ = attend(
            attention,
            turned[:, :, :queries].transpose(1, 2),
            turned[:, :, queries:].transpose(1, 2),
            heads[:, :, -kv_heads:].transpose(1, 2),
            None,
            packed=packed,
            scaling=attention.scaling,
        )
        return out.reshape(*qkv.shape[:2], -1)

    def _norm_heads(self, heads: torch.Tensor, queries: int) -> torch.Tensor:
        """Qwen3 norms queries and keys, head by head; the others do not."""
        attention = self.self_attn
        if not hasattr(attention, "q_norm"):
            return heads
        return torch.cat(
            [_norm(attention.q_norm, heads[:, :, :queries]), _norm(attention.k_norm, heads[:, :, queries:])], 2
        )


def _norm(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    """RMSNorm as `transformers` rounds it: the weight multiplies in the model's number format."""
    if hidden.dtype == torch.float32:
        return rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)
    normed: torch.Tensor = norm.weight * rms_norm(hidden.float(), norm.weight.shape, None, norm.variance_epsilon).to(
        hidden.dtype
    )
    return normed


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of (1, tokens, heads, head size)."""
    first, second = heads.chunk(2, -1)
    return heads * cos[:, :, None] + torch.cat((-second, first), -1) * sin[:, :, None]


def _is_plain(layer: Any, dtype: torch.dtype) -> bool:
    """True if no part of the layer was replaced or made batch-invariant, and its activation is SiLU."""
    linears = [module for module in layer.modules() if isinstance(module, nn.Linear)]
    plain = len(linears) == 7 and all(_packable(each, dtype) and "forward" not in vars(each) for each in linears)
    return plain and layer.self_attn.config.hidden_act == "silu"


def _packable(module: Any, dtype: torch.dtype) -> bool:
    return type(module) is nn.Linear and module.weight.dtype == dtype


def _fuse(layer: Any, min_packed: int) -> None:
    attention, mlp = layer.self_attn, layer.mlp
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    weight = torch.cat([each.weight for each in projections])
    bias = None if projections[0].bias is None else torch.cat([each.bias for each in projections])
    rest = {"o": attention.o_proj, "gate": mlp.gate_proj, "up": mlp.up_proj, "down": mlp.down_proj}
    layer.products = {
        "qkv": make_weight(weight, bias, min_packed),
        **{name: make_weight(each.weight, each.bias, min_packed) for name, each in rest.items()},
    }
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        delattr(attention, name)
    del layer.mlp
    layer.__class__ = FusedLayer


def _pack(module: Any) -> None:
    module.packed_weight = make_weight(module.weight, module.bias, 0)
    module.weight = None
    module.__class__ = PackedLinear
