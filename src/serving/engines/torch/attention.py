"""Attention over packed tokens: stores each session's new keys and values, then attends to that session's cache only.

`transformers` layers call `attend`; the keyword `packed` tells which tokens belong to which session. Importance is
measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.functional import pad
from torch.nn.functional import scaled_dot_product_attention as sdpa

from serving.core.importance import AttentionRows

ATTENTION_NAME = "tandem"


@dataclass(slots=True)
class AttentionSegment:
    """One session's part of a pass: its new tokens, where their keys and values go, and what they attend to.

    Each has one entry per layer from `start_layer` on: a view into the session's cache, or a gather of several runs.
    """

    num_tokens: int
    start_layer: int
    new_keys: LayerTargets
    """Shape (1, KV heads, num_tokens, head size)."""
    new_values: LayerTargets
    keys_values: Mapping[int | None, tuple[LayerTensors, LayerTensors]]
    """Per window of the model keys and values, of shape (1, KV heads, tokens, head size), new ones included."""
    masks: Mapping[int | None, torch.Tensor | None]
    """Per window an additive mask of shape (num_tokens, tokens); None: a single token, or plain causal."""
    importance: ImportanceCollector | None = None


AttentionKernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, float], torch.Tensor]
"""Attention of one session's queries to its keys: query, keys, values, mask, scaling.

Shapes: query (1, heads, tokens, head size), keys and values (1, KV heads, all tokens, head size), mask (tokens, all
tokens), or None for a single query and for causal ones; the result is as the query.
"""


class Batch(Protocol):
    """The tokens of one pass, laid end to end, and what each attends to."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        /,
    ) -> torch.Tensor:
        """Stores keys and values, then attends.

        Shapes: `query` (1, heads, tokens, head size), `key` and `value` (1, KV heads, tokens, head size), the result as
        `query`.
        """


@dataclass(slots=True)
class PackedBatch:
    """A batch of any number of tokens by session."""

    segments: Sequence[AttentionSegment]
    token_counts: list[int]
    sliding_windows: tuple[int | None, ...]
    kernel: AttentionKernel

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        /,
    ) -> torch.Tensor:
        """One session after the other; shapes as in `Batch`."""
        segments, window = self.segments, self.sliding_windows[layer]
        queries, new_keys, new_values = (
            (whole,) if len(segments) == 1 else torch.split(whole, self.token_counts, 2)
            for whole in (query, key, value)
        )
        parts = []
        for segment, q, k, v in zip(segments, queries, new_keys, new_values, strict=True):
            i, mask = layer - segment.start_layer, segment.masks[window]
            segment.new_keys[i].copy_(k)
            segment.new_values[i].copy_(v)
            all_keys, all_values = segment.keys_values[window]
            keys, values = all_keys[i], all_values[i]
            if segment.importance is not None:
                segment.importance.observe(layer, q, keys, scaling, mask)
            parts.append(self.kernel(q, keys, values, mask, scaling))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def attend_together(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """All queries of a session in one product; shapes as in `AttentionKernel`."""
    causal, grouped = mask is None and query.shape[2] > 1, query.shape[1] != keys.shape[1]
    return sdpa(query, keys, values, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=grouped)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,  # noqa: ARG001 - the name `transformers` gives it; masks come in `packed`
    *,
    packed: Batch,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What a layer of `transformers` calls; shapes as in `Batch`, but the output is (1, tokens, heads, head size)."""
    return packed.attend(module.layer_idx, query, key, value, scaling).transpose(1, 2), None


def register_attention() -> None:
    """Registers `attend` with `transformers`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, attend)


class WriteTarget(Protocol):
    """Where new keys or values of one layer go."""

    def copy_(self, values: torch.Tensor, /) -> object: ...


class LayerTensors(Protocol):
    """Keys or values by layer: each of shape (1, KV heads, tokens, head size)."""

    def __getitem__(self, layer: int, /) -> torch.Tensor: ...


class LayerTargets(Protocol):
    def __getitem__(self, layer: int, /) -> WriteTarget: ...


class GatheredLayers:
    """Keys or values in several runs of blocks, concatenated at each read."""

    def __init__(self, runs: Sequence[torch.Tensor]) -> None:
        self._runs = [run.unbind(0) for run in runs]

    def __getitem__(self, layer: int, /) -> torch.Tensor:
        return torch.cat([run[layer] for run in self._runs], 2)


class ScatterTarget:
    """Writes new keys or values to several runs of blocks."""

    def __init__(self, runs: Sequence[torch.Tensor]) -> None:
        self._runs = runs

    def __getitem__(self, layer: int, /) -> ScatterTarget:
        return ScatterTarget([run[layer] for run in self._runs])

    def copy_(self, values: torch.Tensor, /) -> None:
        parts = torch.split(values, [run.shape[-2] for run in self._runs], -2)
        for run, part in zip(self._runs, parts, strict=True):
            run.copy_(part)


def by_layer(run: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Views of the keys and values of a run; its shape: (keys and values, layers, 1, KV heads, tokens, head size)."""
    keys, values = run.unbind(0)
    return keys.unbind(0), values.unbind(0)


class ImportanceCollector:
    """The attention among a draft's tokens, from which its importance is computed (`core/importance.py`).

    Collects the attention of the last tokens of a pass to every key, averaged over heads.

    Args:
        layers: the observed layers; at least one must run in every pass.
    """

    def __init__(self, layers: frozenset[int]) -> None:
        self._layers = layers
        self._num_observed = 1
        self._layer_attention: list[torch.Tensor] = []
        self.passes: list[torch.Tensor] = []
        """One tensor per pass, of shape (planes, observed tokens, keys)."""

    def observe_last(self, num_tokens: int) -> None:
        """Observes the last `num_tokens` tokens of the next pass."""
        self._num_observed, self._layer_attention = num_tokens, []

    def observe(
        self, layer: int, query: torch.Tensor, keys: torch.Tensor, scaling: float, mask: torch.Tensor | None
    ) -> None:
        """Called per layer by `attend`, with one session's part of a pass.

        Shapes: `query` (1, heads, tokens, head size), `keys` (1, KV heads, keys, head size), `mask` (tokens, keys).
        """
        if layer not in self._layers:
            return
        chosen = query[0, :, -self._num_observed :]
        shape = (keys.shape[1], chosen.shape[0] // keys.shape[1], chosen.shape[1], keys.shape[2])
        scores = (chosen.reshape(shape[0], -1, chosen.shape[2]) @ keys[0].transpose(1, 2)).mul_(scaling).view(shape)
        if mask is not None:
            scores = scores + mask[-self._num_observed :]
        elif query.shape[2] > 1:  # plain causal
            ahead = torch.ones(shape[2:], dtype=torch.bool, device=scores.device).triu(shape[3] - shape[2] + 1)
            scores = scores.masked_fill(ahead, float("-inf"))
        self._layer_attention.append(scores.softmax(-1, dtype=torch.float32).mean((0, 1)))

    def end_pass(self) -> None:
        """Keeps both planes of the pass; a layer with a sliding window sees only the last keys."""
        columns = max(seen.shape[1] for seen in self._layer_attention)
        seen = torch.stack([pad(each, (columns - each.shape[1], 0)) for each in self._layer_attention])
        self.passes.append(torch.stack((seen.mean(0), seen[-1])))

    def draft_attention(self, num_adopted: int, num_drafted: int, plane: int) -> AttentionRows:
        """The attention among a draft's tokens, as `draft_importance` reads it.

        The draft is `num_adopted` tokens written before, then `num_drafted` new ones. All but the last are fed: the
        adopted ones at the end of the first pass, each new one in its own pass.
        """
        tokens = num_adopted + num_drafted
        if tokens < 2:
            return [[float(self.passes[0][plane, -1, -1])]] if tokens else []
        fed = self.passes[0].shape[1] if num_adopted else 0
        together = [_padded(self.passes[0][plane, i - fed, -fed:], fed)[: i + 1] for i in range(min(fed, tokens - 1))]
        alone = [_padded(seen[plane, -1, -(i + 1) :], i + 1) for i, seen in enumerate(self.passes[1:num_drafted], fed)]
        return [*together, *alone]


def _padded(row: torch.Tensor, length: int) -> list[float]:
    """A row's values; a sliding window shows fewer, and zeros stand before them."""
    values: list[float] = row.tolist()
    return [0.0] * (length - len(values)) + values
