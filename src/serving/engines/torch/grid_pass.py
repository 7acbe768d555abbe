"""A pass of few tokens over fixed shapes and addresses, as a CUDA graph needs them.

The pass is filled up to a grid of parts and rows; a part is some of a session's new tokens. All sessions have their
caches in one extent of the pool, each from one slot on, and the position of a row is the last of its session's keys
that it attends to: a part attends to what the parts before it wrote in the same pass. A part is filled up with its last
row, and the grid with its last part, so that filling writes keys and values that are written anyway.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol
from weakref import ref

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from serving.engines.torch.model import DecomposedModel
from serving.engines.torch.sequence_cache import SequenceCache

_PARTS = (1, 2, 4, 8, 16, 32, 64)
_ROWS = (1, 3, 5, 8, 16, 32, 64, 128, 256)
"""Rows of a part: a round of drafts has five to nine, a chunk of a prefill 32 and more. Few sizes, since each is
captured.
"""
_MIN_CONTEXT, _MAX_CONTEXT = 256, 8192
_MAX_GRID_ROWS, _MAX_GRID_SLOTS = 256, 65_536
_MAX_FILLING = 4
"""Rows of a grid for each new token, and slots for each cached one: what fills a grid up is computed, too."""
_FREE_ROWS, _FREE_SLOTS = 64, 4096
"""Of a grid, whatever fills it: launching its kernels one by one takes longer."""
_SLOTS_OF_A_ROW = 8
"""Slots that take as long to read as a row to compute (Llama-2-7B and 13B on an H100)."""


class GridShape(NamedTuple):
    """Parts, rows of each, and slots that a row may see."""

    num_parts: int
    num_rows: int
    context: int

    @property
    def cost(self) -> int:
        """In slots."""
        return self.num_parts * (self.context + _SLOTS_OF_A_ROW * self.num_rows)


class ChainInput(Protocol):
    """What a grid reads of a `RunnerInput`: new tokens behind cached ones, at positions start..end-1."""

    @property
    def cache(self) -> SequenceCache: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


def grid_shape(chains: Sequence[ChainInput]) -> GridShape | None:
    """The cheapest grid that holds the pass; None for a pass that is too large, or too uneven, for any."""
    counts, ends = [chain.num_tokens for chain in chains], [chain.end for chain in chains]
    if sum(counts) > _MAX_GRID_ROWS or max(ends) > _MAX_CONTEXT:
        return None
    context = max(_MIN_CONTEXT, 1 << (max(ends) - 1).bit_length())
    max_rows = min(_MAX_GRID_ROWS, max(_FREE_ROWS, _MAX_FILLING * sum(counts)))
    max_slots = min(_MAX_GRID_SLOTS, max(_FREE_SLOTS + sum(ends), _MAX_FILLING * sum(ends)))
    shapes = [GridShape(parts, rows, context) for rows in _ROWS if (parts := _num_parts(counts, rows))]
    allowed = [
        shape
        for shape in shapes
        if shape.num_parts * shape.num_rows <= max_rows
        and (context == _MIN_CONTEXT or shape.num_parts * context <= max_slots)
    ]
    return min(allowed, key=lambda shape: shape.cost, default=None)


def _num_parts(counts: Sequence[int], num_rows: int) -> int | None:
    """Parts of a grid in which each chain of so many tokens has parts of its own; None if they are too many."""
    wanted = sum(-(-count // num_rows) for count in counts)
    return next((parts for parts in _PARTS if parts >= wanted), None)


class GridPass:
    """Layers start_layer..end_layer-1 over a grid of rows, between tensors that stay where they are.

    Args:
        extent: of the pool, of shape (keys and values, layers, 1, KV heads, slots, head size).
        first_layer: the layer that the extent begins with.
    """

    def __init__(
        self,
        model: DecomposedModel,
        shape: GridShape,
        extent: torch.Tensor,
        first_layer: int,
        start_layer: int,
        end_layer: int,
    ) -> None:
        self.shape, self._extent = shape, ref(extent)
        self._layers, self.first_layer = model.layers[start_layer:end_layer], first_layer
        self._windows = model.sliding_windows
        self.group_size = model.heads // model.kv_heads
        """Heads that share keys."""
        self._caches = (None,) * first_layer + extent.select(2, 0).unbind(1)
        self._num_grid_rows = shape.num_parts * shape.num_rows
        self._hidden = extent.new_empty(self._num_grid_rows, model.hidden_size)
        sizes = [shape.num_parts, *[self._num_grid_rows] * 3]
        self._indices = torch.zeros(sum(sizes), dtype=torch.long, device=extent.device)
        first_slots, positions, self._token_of_row, self._row_of_token = torch.split(self._indices, sizes)
        self._first_slots, self._positions = first_slots[:, None], positions.view(shape.num_parts, shape.num_rows)
        self._columns = torch.arange(shape.context, device=extent.device)
        self._tables = [table.clone() for table in model.rotary.for_range(0, shape.context)]

    @property
    def extent(self) -> torch.Tensor | None:
        """None once the pool has freed it: the grid keeps its memory, but not it."""
        return self._extent()

    def fill(self, hidden: torch.Tensor, chains: Sequence[ChainInput], first_slots: Sequence[int]) -> None:
        """Sets the rows: `hidden` of shape (tokens, hidden), chain by chain, and the slot where each cache begins."""
        self._indices.copy_(torch.tensor(grid_indices(self.shape, chains, first_slots)))
        torch.index_select(hidden, 0, self._token_of_row, out=self._hidden)

    def run(self) -> torch.Tensor:
        """Hidden states behind the last layer, of shape (rows of the grid, hidden)."""
        batch = GridBatch(self, self._first_slots, self._positions, self._columns, self._windows)
        positions = self._positions.flatten()
        rotary = tuple(table.index_select(1, positions) for table in self._tables)
        hidden = self._hidden[None]
        for layer in self._layers:
            hidden = layer(hidden, position_embeddings=rotary, attention_mask=None, packed=batch)
        return hidden[0]

    def read(self, output: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """A copy of the rows that are no filling, in the order of `fill`."""
        return output.index_select(0, self._row_of_token[:num_tokens])

    def keys_values(self, layer: int) -> torch.Tensor:
        """Of all slots, of shape (keys and values, KV heads, slots, head size)."""
        cache = self._caches[layer]
        assert cache is not None
        return cache


def grid_indices(shape: GridShape, chains: Sequence[ChainInput], first_slots: Sequence[int]) -> list[int]:
    """What a grid reads: the first slot of each part's session; then of each of its rows the position; the token that
    it computes; and, token by token, the row that computes it.
    """
    slots, positions, tokens, rows_of_tokens = list[int](), list[int](), list[int](), list[int]()
    at = 0
    for chain, slot in zip(chains, first_slots, strict=True):
        for first in range(0, chain.num_tokens, shape.num_rows):
            rows = [min(first + row, chain.num_tokens - 1) for row in range(shape.num_rows)]
            rows_of_tokens += range(len(positions), len(positions) + min(shape.num_rows, chain.num_tokens - first))
            slots.append(slot)
            positions += [chain.start + row for row in rows]
            tokens += [at + row for row in rows]
        at += chain.num_tokens
    filling = shape.num_parts - len(slots)
    slots += slots[-1:] * filling
    positions += positions[-shape.num_rows :] * filling
    tokens += tokens[-shape.num_rows :] * filling
    rows_of_tokens += [0] * (len(positions) - len(rows_of_tokens))
    return [*slots, *positions, *tokens, *rows_of_tokens]


class GridBatch:
    """The attention of a grid's rows: each to its session's slots, up to its own position.

    Shapes: `first_slots` (parts, 1), `positions` (parts, rows), `columns` (context).
    """

    def __init__(
        self,
        grid: GridPass,
        first_slots: torch.Tensor,
        positions: torch.Tensor,
        columns: torch.Tensor,
        windows: Sequence[int | None],
    ) -> None:
        self._grid, self._windows = grid, windows
        self._write_slots = (first_slots + positions).flatten()
        # Beyond a part's last token its slot is read again: other slots may hold anything, NaN included.
        self._read_slots = (first_slots + torch.minimum(columns, positions[:, -1:])).flatten()
        self._masks = {window: self._mask(positions[:, :, None], columns, window) for window in set(windows)}

    def _mask(self, positions: torch.Tensor, columns: torch.Tensor, window: int | None) -> torch.Tensor:
        """An additive mask of shape (1, parts, heads that share keys x rows, context)."""
        seen = columns <= positions
        if window:
            seen &= columns > positions - window
        cache, parts = self._grid.keys_values(self._grid.first_layer), self._grid.shape.num_parts
        mask = torch.zeros(seen.shape, dtype=cache.dtype, device=cache.device).masked_fill_(~seen, float("-inf"))
        return mask[:, None].expand(-1, self._grid.group_size, -1, -1).reshape(1, parts, -1, len(columns))

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        /,
    ) -> torch.Tensor:
        """As `PackedBatch.attend`."""
        parts, rows, context = self._grid.shape
        cache = self._grid.keys_values(layer)
        # Filling writes the slot of the row that it repeats: kernels round equal rows of a product equally.
        for half, new in zip(cache, (key, value), strict=True):
            half.index_copy_(1, self._write_slots, new[0])
        kv_heads, head_size = cache.shape[1], cache.shape[3]
        keys, values = cache.index_select(2, self._read_slots).view(2, kv_heads, parts, context, head_size)
        # Heads that share keys are rows of one product: (KV heads, parts, heads x rows, head size).
        queries = query.view(kv_heads, -1, parts, rows, head_size).transpose(1, 2)
        grouped = queries.reshape(kv_heads, parts, -1, head_size)
        out = sdpa(grouped, keys, values, attn_mask=self._masks[self._windows[layer]], scale=scaling)
        parted = out.view(kv_heads, parts, -1, rows, head_size).transpose(1, 2)
        return parted.reshape(1, -1, parts * rows, head_size)
