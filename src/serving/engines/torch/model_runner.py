"""Runs spans of a model's layers over the packed rows of several sessions, each behind its own cache.

Which cached tokens a row may see, as additive masks that are views of one strip.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from serving.engines.torch.attention import AttentionSegment, ImportanceCollector, PackedBatch
from serving.engines.torch.model import DecomposedModel
from serving.engines.torch.sequence_cache import SequenceCache

_MIN_COLUMNS = 128


class AttentionMasks:
    """Causal masks of shape (rows, tokens), 0 where a row may look and -inf where not.

    Entry (i, j) of a strip that begins at column `past` allows j <= i + past; every mask behind any number of cached
    tokens is a part of it, so nothing is built in the decode loop. SDPA would turn a bool mask into this form in every
    layer anew.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._strips: dict[int | None, torch.Tensor] = {}

    def causal(self, num_cached: int, num_tokens: int, window: int | None) -> torch.Tensor:
        """The mask of `num_tokens` new tokens behind `num_cached` cached ones, of shape (rows, past + rows)."""
        strip = self._strips.get(window)
        if strip is None or strip.shape[0] < num_tokens or strip.shape[1] - strip.shape[0] < num_cached:
            strip = self._strips[window] = self._strip(num_cached, num_tokens, window, strip)
        offset = strip.shape[1] - strip.shape[0]
        return strip[:num_tokens, offset - num_cached : offset + num_tokens]

    def _strip(self, num_cached: int, num_tokens: int, window: int | None, old: torch.Tensor | None) -> torch.Tensor:
        height, offset = (old.shape[0], old.shape[1] - old.shape[0]) if old is not None else (8, _MIN_COLUMNS)
        height, offset = max(height, num_tokens), offset if offset >= num_cached else 2 * num_cached
        i = torch.arange(height, device=self._device)[:, None]
        j = torch.arange(offset + height, device=self._device)[None] - offset
        allowed = j <= i
        if window:
            allowed &= j > i - window
        return self.additive(allowed)

    def tree(self, num_cached: int, parents: tuple[int, ...], depths: list[int], window: int | None) -> torch.Tensor:
        """The mask of a tree of rows behind `num_cached` cached tokens: a row sees those, its ancestors and itself.

        `parents` gives each row's parent row, -1 for none; `depths` its distance from the first root, which decides
        what a sliding window still covers.
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
    """The rows that one session adds to a pass."""

    cache: SequenceCache
    num_tokens: int
    parents: tuple[int, ...] | None = None
    """Where the rows form a tree: each row's parent row, -1 for none. Absent: one row follows the other."""
    num_cached: int | None = None
    """How many tokens these layers have cached, where that is less than others have; None: as many as the slot says."""

    @property
    def start(self) -> int:
        return self.cache.length if self.num_cached is None else self.num_cached


class ModelRunner:
    """One model's embedding, layers and head as three functions; hidden states have the shape (rows, hidden)."""

    def __init__(self, model: DecomposedModel, vocab_size: int) -> None:
        self.model, self.vocab_size = model, vocab_size
        self._masks = AttentionMasks(model.dtype, model.device)
        self._window_sizes = frozenset(model.sliding_windows)
        self.empty_hidden = torch.empty(0, dtype=model.dtype, device=model.device)
        """Of the type and on the device of hidden states."""
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
        importance: ImportanceCollector | None = None,
    ) -> torch.Tensor:
        """Layers first..last-1 over rows that lie end to end in the order of `inputs`; their slots reach as far as
        these rows.
        """
        segments = [self._segment(lot) for lot in inputs]
        packed = PackedBatch(segments, [lot.num_tokens for lot in inputs], self.model.sliding_windows, importance)
        hidden = self._run_layers(hidden, inputs, start_layer, end_layer, packed, self._rotary(inputs))
        for lot in inputs:
            lot.cache.length = lot.start + lot.num_tokens
        return hidden

    def _run_layers(
        self, hidden: torch.Tensor, inputs: Sequence[RunnerInput], start_layer: int, end_layer: int, packed: PackedBatch,  # noqa: ARG002
        rotary: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:  # fmt: skip
        """The layers themselves, when all is in place that they need."""
        hidden = hidden[None]
        for layer in self.model.layers[start_layer:end_layer]:
            hidden = layer(hidden, position_embeddings=rotary, attention_mask=None, packed=packed)
        return hidden[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The head over the rows given, in fp32 and without the vocabulary's padding; shape (rows, vocabulary)."""
        return self.apply_lm_head(self.apply_norm(hidden))

    def apply_lm_head(self, normed: torch.Tensor) -> torch.Tensor:
        """The same over rows that went through the norm."""
        logits: torch.Tensor = self.model.lm_head(normed)
        return logits[:, : self.vocab_size].float()

    def apply_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the head looks at."""
        normed: torch.Tensor = self.model.norm(hidden)
        return normed

    def _segment(self, entry: RunnerInput) -> AttentionSegment:
        slot, past, end = entry.cache, entry.start, entry.start + entry.num_tokens
        slot.reserve(end)
        single = (
            entry.num_tokens == 1 and entry.parents is None
        )  # needs no mask: what its window does not cover is left out
        seen = {w: slot.read_views(max(0, end - w) if w and single else 0, end) for w in self._window_sizes}
        masks = self._unmasked if single else {window: self._mask(entry, past, window) for window in self._window_sizes}
        return AttentionSegment(entry.num_tokens, slot.start_layer, *slot.write_targets(past, end), seen, masks)

    def _mask(self, entry: RunnerInput, num_cached: int, window: int | None) -> torch.Tensor | None:
        if entry.parents is not None:
            return self._masks.tree(num_cached, entry.parents, _depths(entry.parents), window)
        plain = num_cached == 0 and (window is None or entry.num_tokens <= window)
        return None if plain else self._masks.causal(num_cached, entry.num_tokens, window)

    def _rotary(self, inputs: Sequence[RunnerInput]) -> tuple[torch.Tensor, torch.Tensor]:
        rotary = self.model.rotary
        if len(inputs) == 1 and inputs[0].parents is None:
            past = inputs[0].start
            return rotary.for_range(past, past + inputs[0].num_tokens)
        if rotary.original_max_positions is None:
            positions = [position for lot in inputs for position in _positions(lot)]
            return rotary.for_positions(positions, max(positions) + 1)
        each = [rotary.for_positions(_positions(lot), max(_positions(lot)) + 1) for lot in inputs]
        return torch.cat([cos for cos, _ in each], 1), torch.cat([sin for _, sin in each], 1)


def _positions(entry: RunnerInput) -> list[int]:
    past = entry.start
    if entry.parents is None:
        return list(range(past, past + entry.num_tokens))
    return [past + depth for depth in _depths(entry.parents)]


def _depths(parents: tuple[int, ...]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths
