"""Runs spans of a model's layers over the packed rows of several sessions, each behind its own cache.

Which cached tokens a row may see, as additive masks that are views of one strip.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from serving.engines.torch.attention import Packed, Segment
from serving.engines.torch.importance import Importance
from serving.engines.torch.model import Model
from serving.engines.torch.sequence_cache import Slot

_SMALLEST = 128


class Masks:
    """Causal masks of shape (rows, tokens), 0 where a row may look and -inf where not.

    Entry (i, j) of a strip that begins at column `past` allows j <= i + past; every mask behind any number of cached
    tokens is a part of it, so nothing is built in the decode loop. SDPA would turn a bool mask into this form in every
    layer anew.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._strips: dict[int | None, torch.Tensor] = {}

    def causal(self, past: int, rows: int, window: int | None) -> torch.Tensor:
        """The mask of `rows` new tokens behind `past` cached ones, of shape (rows, past + rows)."""
        strip = self._strips.get(window)
        if strip is None or strip.shape[0] < rows or strip.shape[1] - strip.shape[0] < past:
            strip = self._strips[window] = self._strip(past, rows, window, strip)
        offset = strip.shape[1] - strip.shape[0]
        return strip[:rows, offset - past : offset + rows]

    def _strip(self, past: int, rows: int, window: int | None, old: torch.Tensor | None) -> torch.Tensor:
        height, offset = (old.shape[0], old.shape[1] - old.shape[0]) if old is not None else (8, _SMALLEST)
        height, offset = max(height, rows), offset if offset >= past else 2 * past
        i = torch.arange(height, device=self._device)[:, None]
        j = torch.arange(offset + height, device=self._device)[None] - offset
        allowed = j <= i
        if window:
            allowed &= j > i - window
        return self.additive(allowed)

    def tree(self, past: int, parents: tuple[int, ...], depths: list[int], window: int | None) -> torch.Tensor:
        """The mask of a tree of rows behind `past` cached tokens: a row sees those, its ancestors and itself.

        `parents` gives each row's parent row, -1 for none; `depths` its distance from the first root, which decides
        what a sliding window still covers.
        """
        ancestors = torch.eye(len(parents), dtype=torch.bool)
        for row, parent in enumerate(parents):
            if parent >= 0:
                ancestors[row] |= ancestors[parent]
        allowed = torch.cat([torch.ones(len(parents), past, dtype=torch.bool), ancestors], 1)
        if window:
            at = torch.tensor(depths) + past
            keys = torch.cat([torch.arange(past), at])
            allowed &= keys[None] > at[:, None] - window
        return self.additive(allowed.to(self._device))

    def additive(self, allowed: torch.Tensor) -> torch.Tensor:
        return torch.zeros(allowed.shape, dtype=self._dtype, device=self._device).masked_fill_(~allowed, float("-inf"))


@dataclass(frozen=True, slots=True)
class Lot:
    """The rows that one session adds to a pass."""

    slot: Slot
    n: int
    parents: tuple[int, ...] | None = None
    """Where the rows form a tree: each row's parent row, -1 for none. Absent: one row follows the other."""
    past: int | None = None
    """How many tokens these layers have cached, where that is less than others have; None: as many as the slot says."""

    @property
    def start(self) -> int:
        return self.slot.length if self.past is None else self.past


class Stack:
    """One model's embedding, layers and head as three functions; hidden states have the shape (rows, hidden)."""

    def __init__(self, model: Model, vocabulary: int) -> None:
        self.model, self.vocabulary = model, vocabulary
        self._masks = Masks(model.dtype, model.device)
        self._windows = frozenset(model.windows)
        self.like = torch.empty(0, dtype=model.dtype, device=model.device)
        """Of the type and on the device of hidden states."""
        self._open: dict[int | None, torch.Tensor | None] = dict.fromkeys(self._windows)

    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        hidden: torch.Tensor = self.model.embed(torch.tensor(tokens, device=self.model.device))
        return hidden

    def run(
        self, hidden: torch.Tensor, lots: Sequence[Lot], first: int, last: int, importance: Importance | None = None
    ) -> torch.Tensor:
        """Layers first..last-1 over rows that lie end to end in the order of `lots`; their slots reach as far as these
        rows.
        """
        segments = [self._segment(lot) for lot in lots]
        packed = Packed(segments, [lot.n for lot in lots], self.model.windows, importance)
        hidden = self._through(hidden, lots, first, last, packed, self._rotary(lots))
        for lot in lots:
            lot.slot.length = lot.start + lot.n
        return hidden

    def _through(
        self, hidden: torch.Tensor, lots: Sequence[Lot], first: int, last: int, packed: Packed,  # noqa: ARG002
        rotary: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:  # fmt: skip
        """The layers themselves, when all is in place that they need."""
        hidden = hidden[None]
        for layer in self.model.layers[first:last]:
            hidden = layer(hidden, position_embeddings=rotary, attention_mask=None, packed=packed)
        return hidden[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The head over the rows given, in fp32 and without the vocabulary's padding; shape (rows, vocabulary)."""
        return self.read_off(self.normed(hidden))

    def read_off(self, normed: torch.Tensor) -> torch.Tensor:
        """The same over rows that went through the norm."""
        logits: torch.Tensor = self.model.head(normed)
        return logits[:, : self.vocabulary].float()

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the head looks at."""
        normed: torch.Tensor = self.model.norm(hidden)
        return normed

    def _segment(self, lot: Lot) -> Segment:
        slot, past, end = lot.slot, lot.start, lot.start + lot.n
        slot.reserve(end)
        single = lot.n == 1 and lot.parents is None  # needs no mask: what its window does not cover is left out
        seen = {w: slot.views(max(0, end - w) if w and single else 0, end) for w in self._windows}
        masks = self._open if single else {window: self._mask(lot, past, window) for window in self._windows}
        return Segment(lot.n, slot.first, *slot.targets(past, end), seen, masks)

    def _mask(self, lot: Lot, past: int, window: int | None) -> torch.Tensor | None:
        if lot.parents is not None:
            return self._masks.tree(past, lot.parents, _depths(lot.parents), window)
        plain = past == 0 and (window is None or lot.n <= window)
        return None if plain else self._masks.causal(past, lot.n, window)

    def _rotary(self, lots: Sequence[Lot]) -> tuple[torch.Tensor, torch.Tensor]:
        rotary = self.model.rotary
        if len(lots) == 1 and lots[0].parents is None:
            past = lots[0].start
            return rotary.between(past, past + lots[0].n)
        if rotary.original is None:
            positions = [position for lot in lots for position in _positions(lot)]
            return rotary.at(positions, max(positions) + 1)
        each = [rotary.at(_positions(lot), max(_positions(lot)) + 1) for lot in lots]
        return torch.cat([cos for cos, _ in each], 1), torch.cat([sin for _, sin in each], 1)


def _positions(lot: Lot) -> list[int]:
    past = lot.start
    if lot.parents is None:
        return list(range(past, past + lot.n))
    return [past + depth for depth in _depths(lot.parents)]


def _depths(parents: tuple[int, ...]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths
