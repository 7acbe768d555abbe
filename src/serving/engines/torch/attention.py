"""Attention over packed rows: each session's new rows are stored in its slot, then look at that slot only.

`transformers` layers call this as their attention function; which rows belong to whom rides along as the keyword
`packed`.

Keys and values of one session by layer: views of one run of blocks, or of several that lie apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.functional import pad
from torch.nn.functional import scaled_dot_product_attention as sdpa

ATTENTION_NAME = "tandem"


@dataclass(slots=True)
class AttentionSegment:
    """One session's share of a pass: `num_tokens` rows, where their keys and values go, and what they look at.

    Each has one entry per layer from `start_layer` on: a view into the session's slot, made once a pass, or what
    gathers blocks that lie apart.
    """

    num_tokens: int
    start_layer: int
    new_keys: LayerTargets
    """Shape (1, KV heads, n, head size)."""
    new_values: LayerTargets
    keys_values: Mapping[int | None, tuple[LayerTensors, LayerTensors]]
    """Per window of the model keys and values, of shape (1, KV heads, tokens, head size), new ones included."""
    masks: Mapping[int | None, torch.Tensor | None]
    """Per window an additive mask of shape (n, tokens); None: a single row, or a plain triangle."""


@dataclass(slots=True)
class PackedBatch:
    """All rows of one pass, laid end to end, and who they belong to."""

    segments: Sequence[AttentionSegment]
    token_counts: list[int]
    sliding_windows: tuple[int | None, ...]
    importance: ImportanceCollector | None = None


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,  # noqa: ARG001 - the name `transformers` gives it; masks ride in `packed`
    *,
    packed: PackedBatch,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Stores keys and values, then attends, one session after the other.

    Shapes: `query` (1, heads, rows, head size), `key` and `value` (1, KV heads, rows, head size), the output
    (1, rows, heads, head size).
    """
    layer, segments = module.layer_idx, packed.segments
    window, grouped = packed.sliding_windows[layer], query.shape[1] != key.shape[1]
    queries, new_keys, new_values = (
        (whole,) if len(segments) == 1 else torch.split(whole, packed.token_counts, 2) for whole in (query, key, value)
    )
    parts = []
    for segment, q, k, v in zip(segments, queries, new_keys, new_values, strict=True):
        i, mask = layer - segment.start_layer, segment.masks[window]
        segment.new_keys[i].copy_(k)
        segment.new_values[i].copy_(v)
        all_keys, all_values = segment.keys_values[window]
        keys, values = all_keys[i], all_values[i]
        if packed.importance is not None:
            packed.importance.observe(layer, q, keys, scaling, mask)
        causal = mask is None and segment.num_tokens > 1
        parts.append(sdpa(q, keys, values, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=grouped))
    out = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    return out.transpose(1, 2), None


def register_attention() -> None:
    """Makes `attend` known to `transformers` under the name of this project."""
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
    """What lies in several runs of blocks, put together at each look."""

    def __init__(self, runs: Sequence[torch.Tensor]) -> None:
        self._runs = [run.unbind(0) for run in runs]

    def __getitem__(self, layer: int, /) -> torch.Tensor:
        return torch.cat([run[layer] for run in self._runs], 2)


class ScatterTarget:
    """New rows that go to several runs of blocks."""

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
    """Gathers the attention that the last rows of a pass pay to every column, averaged over heads and probed layers.

    Args:
        layers: the probed layers; at least one must be run in every pass.
    """

    def __init__(self, layers: frozenset[int]) -> None:
        self._layers = layers
        self._num_observed = 1
        self._layer_attention: list[torch.Tensor] = []
        self.passes: list[torch.Tensor] = []
        """One tensor a pass, of shape (rows looked at, columns)."""

    def observe_last(self, num_tokens: int) -> None:
        """How many of the last rows of the next pass to look at."""
        self._num_observed, self._layer_attention = num_tokens, []

    def observe(
        self, layer: int, query: torch.Tensor, keys: torch.Tensor, scaling: float, mask: torch.Tensor | None
    ) -> None:
        """Called per layer by the attention function with the queries, keys and mask of its one session.

        Shapes: `query` (1, heads, rows, head size), `keys` (1, KV heads, columns, head size), `mask` (rows, columns).
        """
        if layer not in self._layers:
            return
        chosen = query[0, :, -self._num_observed :]
        shape = (keys.shape[1], chosen.shape[0] // keys.shape[1], chosen.shape[1], keys.shape[2])
        scores = (chosen.reshape(shape[0], -1, chosen.shape[2]) @ keys[0].transpose(1, 2)).mul_(scaling).view(shape)
        if mask is not None:
            scores = scores + mask[-self._num_observed :]
        elif query.shape[2] > 1:  # a plain triangle
            ahead = torch.ones(shape[2:], dtype=torch.bool, device=scores.device).triu(shape[3] - shape[2] + 1)
            scores = scores.masked_fill(ahead, float("-inf"))
        self._layer_attention.append(scores.softmax(-1, dtype=torch.float32).mean((0, 1)))

    def end_pass(self) -> None:
        """Averages over layers; a sliding window shows fewer columns, the last ones."""
        columns = max(seen.shape[1] for seen in self._layer_attention)
        self.passes.append(
            torch.stack([pad(seen, (columns - seen.shape[1], 0)) for seen in self._layer_attention]).mean(0)
        )

    def draft_importance(self, num_adopted: int, num_drafted: int) -> tuple[float, ...]:
        """Per token of a draft the mean attention that its rows at or after that token pay to it.

        The draft is `num_adopted` tokens that were written before and `num_drafted` new ones. All but the last are fed:
        of the former as the last rows of the first pass, each new one in a pass of its own. The last token gets the
        mean of the others; where nothing is fed, the row that wrote the token, seen by itself, stands in.
        """
        tokens = num_adopted + num_drafted
        if tokens < 2:
            return tuple(float(self.passes[0][-1, -1]) for _ in range(tokens))
        sums = torch.zeros(tokens - 1)
        fed = self.passes[0].shape[0] if num_adopted else 0
        if fed:
            n = min(fed, tokens - 1)
            sums[:n] += self.passes[0][-fed:, -fed:][:n, :n].sum(0).cpu()
        for i, seen in enumerate(self.passes[1:num_drafted], fed + 1):
            own = seen[-1, -i:]
            sums[i - own.shape[0] : i] += own.cpu()
        means: list[float] = (sums / torch.arange(tokens - 1, 0, -1)).tolist()
        return (*means, sum(means) / len(means))
