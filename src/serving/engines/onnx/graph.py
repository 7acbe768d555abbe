"""The exported module: a causal LM whose KV cache is an input and an output.

It runs the layers of `transformers` with its own attention, which appends new keys and values to the cached ones.
Positions and masks follow from the shapes.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from serving.core.scores import Scorer
from serving.engines.torch.model import DecomposedModel, RotaryEmbedding
from serving.learned.mlp import NumpyMLP

ATTENTION_NAME = "tandem_graph"


class GraphCaches:
    """The KV caches of one pass.

    Args:
        past: keys and values, layer by layer, of shape (batch, KV heads, past, head size).
        masks: per window of the model an additive mask of shape (new tokens, past + new tokens).
    """

    def __init__(
        self,
        past: list[torch.Tensor],
        masks: dict[int | None, torch.Tensor],
        windows: tuple[int | None, ...],
    ) -> None:
        self._past, self._masks, self._windows = past, masks, windows
        self.present: list[torch.Tensor] = []

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """(batch, heads, tokens, head size) to (batch, tokens, heads, head size); heads with shared keys are folded."""
        keys = torch.cat([self._past[2 * layer], key], 2)
        values = torch.cat([self._past[2 * layer + 1], value], 2)
        self.present += [keys, values]
        batch, heads, rows, size = query.shape
        shared = keys.shape[1] != heads
        folded = (batch, keys.shape[1], heads // keys.shape[1] * rows)
        query = query * scaling
        weights = (query.reshape(*folded, size) if shared else query) @ keys.transpose(-1, -2)
        if shared:
            weights = weights.reshape(batch, heads, rows, -1)
        weights = (weights + self._masks[self._windows[layer]]).softmax(-1)
        seen = (weights.reshape(*folded, -1) if shared else weights) @ values
        return (seen.reshape(batch, heads, rows, size) if shared else seen).transpose(1, 2)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,  # noqa: ARG001 - the name `transformers` gives it; masks come in `caches`
    *,
    caches: GraphCaches,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that `transformers` layers call."""
    return caches.attend(module.layer_idx, query, key, value, scaling), None


class RotaryAngles(nn.Module):
    """Rotary cosines and sines of any positions, of shape (1, positions, rotated size).

    Beyond its original length a `longrope` model uses other frequencies for the whole sequence.
    """

    def __init__(self, rotary: RotaryEmbedding) -> None:
        super().__init__()
        self.original_max_positions = rotary.original_max_positions
        short, self._scale = rotary.frequencies(long=False)
        self.short = nn.Parameter(short, requires_grad=False)
        self.long = nn.Parameter(rotary.frequencies(long=True)[0], requires_grad=False)

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        frequencies: torch.Tensor = self.short
        if self.original_max_positions is not None:
            frequencies = torch.where(positions[-1] >= self.original_max_positions, self.long, frequencies)
        angles = positions[None, :, None].float() * frequencies
        angles = torch.cat([angles, angles], -1)
        cos, sin = angles.cos(), angles.sin()
        return (cos, sin) if self._scale == 1.0 else (cos * self._scale, sin * self._scale)


@runtime_checkable
class TorchScorer(Protocol):
    """A scorer that is more than a `NumpyMLP`, and so brings what is exported."""

    def logit_module(self) -> nn.Module:
        """Computes the logit of its score from hidden states: (..., hidden) to (...)."""
        ...


def logit_module(scorer: Scorer) -> nn.Module:
    """The logit of a trained score over hidden states, (..., hidden) to (...); the caller computes the sigmoid in
    float64. Raises ValueError for a scorer that cannot be exported.
    """
    if isinstance(scorer, TorchScorer):
        return scorer.logit_module().eval()
    if isinstance(scorer, NumpyMLP):
        return MLPLogit(scorer).eval()
    raise ValueError(
        f"{scorer!r}, which computes {scorer.name!r}, cannot be exported to ONNX: make it a NumpyMLP, or give it a "
        "logit_module() (serving.engines.onnx.graph.TorchScorer). With model.stages.device_graph.scorers=[] it is not "
        "exported, and reads the hidden states that the graph outputs"
    )


class MLPLogit(nn.Module):
    """The logit of a network over its features, (..., features) to (...)."""

    def __init__(self, mlp: NumpyMLP) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor(mlp.mean), requires_grad=False)
        self.deviation = nn.Parameter(torch.tensor(mlp.std), requires_grad=False)
        self.linears = nn.ModuleList(_linear(weight, bias) for weight, bias in mlp.layers)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        x = (hidden - self.mean) / self.deviation
        for i, step in enumerate(self.linears):
            x = step(x.relu() if i else x)
        return x.squeeze(-1)


def _linear(weight: Any, bias: Any) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight, layer.bias = nn.Parameter(torch.tensor(weight)), nn.Parameter(torch.tensor(bias))
    return layer.requires_grad_(False)


class ExportGraph(nn.Module):
    """(ids, rows, past) to (logits, hidden, a logit of each trained score, present).

    Shapes: ids (batch, length); rows (n): the output positions among the new tokens; past: two per layer, of shape
    (batch, KV heads, past, head size). logits (batch, n, vocabulary); hidden (batch, n, hidden), after the last norm;
    trained scores (batch, n); present as past, `length` longer. All of a batch have the same past length.

    The model's layers are given this module's attention: its engine cannot run them until `restore_attention`.
    """

    def __init__(self, model: DecomposedModel, score_logits: Sequence[nn.Module] = ()) -> None:
        super().__init__()
        self.embed, self.layers = model.embed, nn.ModuleList(model.layers)
        self.norm, self.lm_head = model.norm, model.lm_head
        self.angles = RotaryAngles(model.rotary)
        self.score_logits = nn.ModuleList(score_logits)
        self._windows = model.sliding_windows
        self._original_attention = _set_attention(self.layers, ATTENTION_NAME)

    def restore_attention(self) -> None:
        """Gives the layers their original attention again."""
        _set_attention(self.layers, self._original_attention)

    def forward(self, ids: torch.Tensor, rows: torch.Tensor, past: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        length, cached = ids.shape[1], past[0].shape[2]
        positions = torch.arange(length) + cached
        caches = GraphCaches(past, self._masks(positions, torch.arange(length + cached)), self._windows)
        hidden, rotary = self.embed(ids), self.angles(positions)
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=rotary, attention_mask=None, caches=caches)
        hidden = self.norm(hidden.index_select(1, rows))
        return (self.lm_head(hidden), hidden, *(logit(hidden) for logit in self.score_logits), *caches.present)

    def _masks(self, positions: torch.Tensor, keys: torch.Tensor) -> dict[int | None, torch.Tensor]:
        masks = {}
        for window in dict.fromkeys(self._windows):
            seen = keys[None] <= positions[:, None]
            if window:
                seen = seen & (keys[None] > positions[:, None] - window)
            masks[window] = torch.where(seen, 0.0, float("-inf"))
        return masks


def _set_attention(layers: nn.ModuleList, name: str) -> str:
    """Sets the layers' attention function by name; returns the previous name."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, attend)
    before = ""
    for module in layers.modules():
        if config := getattr(module, "config", None):
            before = before or str(config._attn_implementation)
            config._attn_implementation = name
    return before
