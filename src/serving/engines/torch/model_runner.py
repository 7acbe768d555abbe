"""Runs spans of a model's layers over the packed tokens of several sessions, each with its own cache and mask."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from serving.core.draft_tree import depths
from serving.engines.torch.attention import AttentionSegment, ImportanceCollector, PackedBatch
from serving.engines.torch.cuda_graph import CudaGraphs
from serving.engines.torch.model import DecomposedModel
from serving.engines.torch.sequence_cache import SequenceCache

_MIN_COLUMNS = 128
_MAX_KEPT_ROWS = 64
"""Of a strip, which is kept: a prompt's chunk times the longest cache would be gigabytes beside the weights."""


class AttentionMasks:
    """Additive masks of shape (new tokens, all tokens): 0 for visible keys, -inf for the others.

    Each causal mask of few tokens is a view of one strip per window, so the decode loop builds none; one of more tokens
    is built for its pass. Additive, because SDPA would convert a bool mask in every layer.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._strips: dict[int | None, torch.Tensor] = {}

    def causal(self, num_cached: int, num_tokens: int, window: int | None) -> torch.Tensor:
        """The mask of `num_tokens` new tokens after `num_cached` cached ones."""
        if num_tokens > _MAX_KEPT_ROWS:
            return self._build(num_cached, num_tokens, window)
        strip = self._strips.get(window)
        if strip is None or strip.shape[0] < num_tokens or strip.shape[1] - strip.shape[0] < num_cached:
            strip = self._strips[window] = self._strip(num_cached, num_tokens, window, strip)
        offset = strip.shape[1] - strip.shape[0]
        mask = strip[:num_tokens, offset - num_cached : offset + num_tokens]
        # CUDA kernels read masks in vectors of 16 bytes, and torch aligns their rows, but not where they begin.
        return mask.clone() if self._device.type == "cuda" else mask

    def _strip(self, num_cached: int, num_tokens: int, window: int | None, old: torch.Tensor | None) -> torch.Tensor:
        height, offset = (old.shape[0], old.shape[1] - old.shape[0]) if old is not None else (8, _MIN_COLUMNS)
        height, offset = max(height, num_tokens), offset if offset >= num_cached else 2 * num_cached
        return self._build(offset, height, window)

    def _build(self, num_cached: int, num_tokens: int, window: int | None) -> torch.Tensor:
        i = torch.arange(num_tokens, device=self._device)[:, None]
        j = torch.arange(num_cached + num_tokens, device=self._device)[None] - num_cached
        allowed = j <= i
        if window:
            allowed &= j > i - window
        return self.additive(allowed)

    def tree(self, num_cached: int, parents: tuple[int, ...], depths: list[int], window: int | None) -> torch.Tensor:
        """The mask of a tree after `num_cached` cached tokens: a node sees these, its ancestors and itself.

        `parents` gives each node's parent, -1 for none; `depths` its distance from the root, for a sliding window.
        """
        ancestors = torch.eye(len(parents), dtype=torch.bool)
        for row, parent in enumerate(parents):
            if parent >= 0:
                ancestors[row] |= ancestors[parent]
        allowed = torch.cat([torch.ones(len(parents), num_cached, dtype=torch.bool), ancestors], 1)
        if window:
            at = torch.tensor(depths) + num_cached
            keys = torch.cat([torch.arange(num_cached), at])
            allowed &= keys[None] > at[:, None] - window
        return self.additive(allowed.to(self._device))

    def additive(self, allowed: torch.Tensor) -> torch.Tensor:
        return torch.zeros(allowed.shape, dtype=self._dtype, device=self._device).masked_fill_(~allowed, float("-inf"))


@dataclass(frozen=True, slots=True)
class RunnerInput:
    """The new tokens of one session in a pass."""

    cache: SequenceCache
    num_tokens: int
    parents: tuple[int, ...] | None = None
    """For a tree: each token's parent, -1 for none. It may begin with nodes that are cached. None: a chain."""
    num_cached: int | None = None
    """Tokens that these layers have cached, if fewer than `cache.length`; None: that many."""
    importance: ImportanceCollector | None = None
    """Observes the attention of the session's last tokens."""

    @property
    def start(self) -> int:
        return self.cache.length if self.num_cached is None else self.num_cached

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def tree_start(self) -> int:
        """The position from which the tree grows: that of its first node."""
        return self.start if self.parents is None else self.start + self.num_tokens - len(self.parents)


class ModelRunner:
    """Embedding, layers and LM head of a model; hidden states have the shape (tokens, hidden).

    Args:
        graphs: replay passes that are chains without importance, where they can.
    """

    def __init__(self, model: DecomposedModel, vocab_size: int, graphs: CudaGraphs | None = None) -> None:
        self.model, self.vocab_size, self._graphs = model, vocab_size, graphs
        self._masks = AttentionMasks(model.dtype, model.device)
        self._window_sizes = frozenset(model.sliding_windows)
        self.empty_hidden = torch.empty(0, dtype=model.dtype, device=model.device)
        """An empty tensor with the dtype and device of hidden states."""
        self._unmasked: dict[int | None, torch.Tensor | None] = dict.fromkeys(self._window_sizes)

    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        hidden: torch.Tensor = self.model.embed(torch.tensor(tokens, device=self.model.device))
        return hidden

    def run(
        self,
        hidden: torch.Tensor,
        inputs: Sequence[RunnerInput],
        start_layer: int,
        end_layer: int,
    ) -> torch.Tensor:
        """Runs layers start_layer..end_layer-1 over the tokens of `inputs`, whose caches grow by them."""
        for entry in inputs:
            entry.cache.reserve(entry.end)
        replayed = self._replay(hidden, inputs, start_layer, end_layer)
        if replayed is None:
            segments = [self._segment(entry) for entry in inputs]
            token_counts = [entry.num_tokens for entry in inputs]
            packed = PackedBatch(segments, token_counts, self.model.sliding_windows, self.model.attention_kernel)
            hidden = self._run_layers(hidden, inputs, start_layer, end_layer, packed, self._rotary(inputs))
        else:
            hidden = replayed
        for entry in inputs:
            entry.cache.length = entry.end
        return hidden

    def _replay(
        self, hidden: torch.Tensor, inputs: Sequence[RunnerInput], start_layer: int, end_layer: int
    ) -> torch.Tensor | None:
        if self._graphs is None or any(entry.parents is not None or entry.importance is not None for entry in inputs):
            return None
        return self._graphs.run(hidden, inputs, start_layer, end_layer)

    def _run_layers(
        self,
        hidden: torch.Tensor,
        inputs: Sequence[RunnerInput],  # noqa: ARG002
        start_layer: int,
        end_layer: int,
        packed: PackedBatch,
        rotary: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        hidden = hidden[None]
        for layer in self.model.layers[start_layer:end_layer]:
            hidden = layer(hidden, position_embeddings=rotary, attention_mask=None, packed=packed)
        return hidden[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Norm and LM head; fp32, without the vocabulary's padding, of shape (tokens, vocabulary)."""
        return self.apply_lm_head(self.apply_norm(hidden))

    def apply_lm_head(self, normed: torch.Tensor) -> torch.Tensor:
        """The LM head over normed hidden states."""
        logits: torch.Tensor = self.model.lm_head(normed)
        return logits[:, : self.vocab_size].float()

    def apply_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.model.norm(hidden)
        return normed

    def _segment(self, entry: RunnerInput) -> AttentionSegment:
        cache, past, end = entry.cache, entry.start, entry.end
        # A single token needs no mask: its read view leaves out what its window does not cover.
        single = entry.num_tokens == 1 and entry.parents is None
        seen = {w: cache.read_views(max(0, end - w) if w and single else 0, end) for w in self._window_sizes}
        masks = self._unmasked if single else {window: self._mask(entry, past, window) for window in self._window_sizes}
        targets = cache.write_targets(past, end)
        return AttentionSegment(entry.num_tokens, cache.start_layer, *targets, seen, masks, entry.importance)

    def _mask(self, entry: RunnerInput, num_cached: int, window: int | None) -> torch.Tensor | None:
        if entry.parents is not None:
            whole = self._masks.tree(entry.tree_start, entry.parents, depths(entry.parents), window)
            return whole[-entry.num_tokens :]
        plain = num_cached == 0 and (window is None or entry.num_tokens <= window)
        return None if plain else self._masks.causal(num_cached, entry.num_tokens, window)

    def _rotary(self, inputs: Sequence[RunnerInput]) -> tuple[torch.Tensor, torch.Tensor]:
        rotary = self.model.rotary
        if len(inputs) == 1 and inputs[0].parents is None:
            past = inputs[0].start
            return rotary.for_range(past, past + inputs[0].num_tokens)
        if rotary.original_max_positions is None:
            positions = [position for entry in inputs for position in _positions(entry)]
            return rotary.for_positions(positions, max(positions) + 1)
        each = [rotary.for_positions(_positions(entry), max(_positions(entry)) + 1) for entry in inputs]
        return torch.cat([cos for cos, _ in each], 1), torch.cat([sin for _, sin in each], 1)


def _positions(entry: RunnerInput) -> list[int]:
    past = entry.start
    if entry.parents is None:
        return list(range(past, past + entry.num_tokens))
    return [entry.tree_start + depth for depth in depths(entry.parents)[-entry.num_tokens :]]
