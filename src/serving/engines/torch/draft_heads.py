"""Drafters made from the target: HAT's adapter behind its first layers (HAT, section 3.4), and Medusa heads."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import silu

from serving.engines.torch.model import DecomposedModel
from serving.learned.medusa import WEIGHTS, MedusaHeads
from serving.messages import DraftTree


class ZeroMLP(nn.Module):
    """Replaces the MLP of a layer; its output is zero."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(hidden)


def init_adapter(model: DecomposedModel, shallow: int) -> nn.Module:
    """A decoder layer without its MLP, to run after the first `shallow` layers: norm, self-attention, residual.

    Its weights are a copy of layer `shallow`, or of the model's last layer.
    """
    layer = deepcopy(model.layers[min(shallow, len(model.layers) - 1)])
    layer.mlp, layer.post_attention_layernorm = ZeroMLP(), nn.Identity()
    for module in layer.modules():
        if hasattr(module, "layer_idx"):
            module.layer_idx = shallow  # type: ignore[assignment]
    return layer


def attach_adapter(model: DecomposedModel, shallow: int, adapter: nn.Module) -> DecomposedModel:
    """The draft model: the first `shallow` layers, then the adapter, then the head."""
    layers, windows = model.layers[:shallow], model.sliding_windows[:shallow]
    return replace(model, layers=(*layers, adapter), sliding_windows=(*windows, windows[-1]))


def load_adapter_drafter(model: DecomposedModel, shallow: int, weights: Path) -> DecomposedModel:
    """The draft model with the trained `weights`.

    Raises ValueError that names the file if it is missing, damaged, or of another model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    adapter = init_adapter(model, shallow)
    try:
        adapter.load_state_dict(load_file(weights))
    except (OSError, SafetensorError, RuntimeError) as problem:
        raise ValueError(f"adapter {weights} does not fit {model.name} ({problem}); train it for this model") from None
    return attach_adapter(model, shallow, adapter.to(device=model.device, dtype=model.dtype).eval())


class MedusaHead(nn.Module):
    """A residual block and an LM head of its own (Medusa, section 2.1.1): softmax(W2 (SiLU(W1 h + b) + h))."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.block = nn.Linear(hidden_size, hidden_size)
        self.out = nn.Linear(hidden_size, vocab_size, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(silu(self.block(hidden)) + hidden)
        return logits


def init_medusa_heads(model: DecomposedModel, count: int) -> nn.ModuleList:
    """Heads that compute the target's logits: W1 is zero, W2 the target's LM head."""
    heads = _medusa_heads(model, count)
    for head in heads:
        assert isinstance(head, MedusaHead)
        nn.init.zeros_(head.block.weight)
        nn.init.zeros_(head.block.bias)
        head.out.load_state_dict(model.lm_head.state_dict())
    return heads


def _medusa_heads(model: DecomposedModel, count: int) -> nn.ModuleList:
    return nn.ModuleList(MedusaHead(model.hidden_size, model.vocab_size) for _ in range(count))


class MedusaProposer:
    """Proposes draft trees with trained Medusa heads."""

    def __init__(self, draft_heads: nn.ModuleList, medusa: MedusaHeads, vocab_size: int) -> None:
        self._draft_heads, self._medusa, self._vocab_size = draft_heads, medusa, vocab_size

    def propose(self, hidden: torch.Tensor) -> DraftTree:
        """The tree whose root is the token that the target chooses here.

        `hidden` is the final hidden state of the last accepted token, norm included, of shape (hidden).
        """
        return DraftTree(self._medusa.propose(self.top_tokens(hidden[None])[0]), self._medusa.parents)

    def top_tokens(self, hidden: torch.Tensor) -> Sequence[Sequence[Sequence[int]]]:
        """Per token and head, the likeliest tokens, as many as the tree uses; `hidden` is (tokens, hidden)."""
        widest = self._medusa.top_k
        found = torch.stack(
            [head(hidden)[:, : self._vocab_size].topk(widest, -1).indices for head in self._draft_heads], 1
        )
        rows: list[list[list[int]]] = found.tolist()
        return rows


def load_medusa_heads(model: DecomposedModel, medusa: MedusaHeads, vocab_size: int) -> MedusaProposer:
    """The trained heads; the model's weights may be packed.

    Raises ValueError that names the file if it is missing, damaged, or of another model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    heads, weights = _medusa_heads(model, medusa.num_heads), Path(medusa.folder) / WEIGHTS
    try:
        heads.load_state_dict(load_file(weights))
    except (OSError, SafetensorError, RuntimeError) as problem:
        raise ValueError(f"medusa heads {weights} do not fit {model.name} ({problem}); train them for it") from None
    return MedusaProposer(heads.to(device=model.device, dtype=model.dtype).eval(), medusa, vocab_size)
