"""Passes of few tokens that a GPU replays as one CUDA graph: launching their kernels takes longer than running them.

A graph has fixed shapes and addresses. So a pass is filled up to a grid of sessions and rows, whose caches lie in one
extent of the pool; a row finds its session's keys by the slot at which they begin, and sees as many as its position
says. What fills the grid up is its last row again, which writes what that row writes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from serving.engines.torch.attention import Kernel
from serving.engines.torch.model import DecomposedModel
from serving.engines.torch.sequence_cache import SequenceCache

_SESSIONS = (1, 2, 4, 8, 16, 32, 64)
_ROWS = (1, 3, 5, 8, 16, 32)
"""Rows of a session: a round of drafts has five to nine, a chunk of a prefill 32. Few sizes, since each is captured."""
_MIN_CONTEXT, _MAX_CONTEXT = 256, 8192
_MAX_GRID_ROWS = 256
_MAX_FILLING = 4
"""Rows of a grid over those that are computed: with more, a graph takes longer than it saves."""
_MAX_GRAPHS = 64


class GridShape(NamedTuple):
    """Sessions, rows of each, and slots that a row may see."""

    num_sessions: int
    num_rows: int
    context: int


@dataclass(frozen=True, slots=True)
class ChainInput:
    """The new tokens of one session, a chain behind those that are cached."""

    cache: SequenceCache
    num_tokens: int
    start: int
    """The first token's position."""

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


def grid_shape(chains: Sequence[ChainInput]) -> GridShape | None:
    """The smallest grid that holds the pass; None for a pass that is too large, or too uneven, for any."""
    num_tokens = sum(chain.num_tokens for chain in chains)
    sessions = _at_least(_SESSIONS, len(chains))
    rows = _at_least(_ROWS, max(chain.num_tokens for chain in chains))
    longest = max(chain.end for chain in chains)
    if sessions is None or rows is None or longest > _MAX_CONTEXT:
        return None
    if sessions * rows > min(_MAX_GRID_ROWS, _MAX_FILLING * num_tokens):
        return None
    return GridShape(sessions, rows, max(_MIN_CONTEXT, 1 << (longest - 1).bit_length()))


def _at_least(sizes: Sequence[int], wanted: int) -> int | None:
    return next((size for size in sizes if size >= wanted), None)


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
        self.shape, self.extent = shape, extent
        self._layers = model.layers[start_layer:end_layer]
        self._windows = model.sliding_windows
        self.group_size = model.heads // model.kv_heads
        """Heads that share keys."""
        self._caches = (None,) * first_layer + extent.select(2, 0).unbind(1)
        self._num_grid_rows = shape.num_sessions * shape.num_rows
        self._hidden = extent.new_empty(self._num_grid_rows, model.hidden_size)
        whole = torch.zeros(shape.num_sessions + 3 * self._num_grid_rows, dtype=torch.long, device=extent.device)
        self._numbers = whole
        sizes = [shape.num_sessions, *[self._num_grid_rows] * 3]
        first_slots, positions, self._sources, self._places = torch.split(whole, sizes)
        self._first_slots, self._positions = first_slots[:, None], positions.view(shape.num_sessions, shape.num_rows)
        self._columns = torch.arange(shape.context, device=extent.device)
        self._tables = [table.clone() for table in model.rotary.for_range(0, shape.context)]

    def fill(self, hidden: torch.Tensor, chains: Sequence[ChainInput], first_slots: Sequence[int]) -> None:
        """Sets the rows: `hidden` of shape (tokens, hidden), chain by chain, and the slot where each cache begins."""
        numbers = grid_numbers(self.shape, chains, first_slots)
        self._numbers.copy_(torch.tensor(numbers))
        torch.index_select(hidden, 0, self._sources, out=self._hidden)

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
        return output.index_select(0, self._places[:num_tokens])

    def keys_values(self, layer: int) -> torch.Tensor:
        """Of all slots, of shape (keys and values, KV heads, slots, head size)."""
        cache = self._caches[layer]
        assert cache is not None
        return cache


def grid_numbers(shape: GridShape, chains: Sequence[ChainInput], first_slots: Sequence[int]) -> list[int]:
    """What a grid reads: each session's first slot; then of each of its rows the position; the token that it computes;
    and, token by token, the row that computes it.
    """
    filling = shape.num_sessions - len(chains)
    slots = [*first_slots, *[first_slots[-1]] * filling]
    positions, sources, places = list[int](), list[int](), list[int]()
    at = 0
    for session, chain in enumerate(chains):
        rows = [min(row, chain.num_tokens - 1) for row in range(shape.num_rows)]
        positions += [chain.start + row for row in rows]
        sources += [at + row for row in rows]
        places += [session * shape.num_rows + row for row in range(chain.num_tokens)]
        at += chain.num_tokens
    positions += positions[-shape.num_rows :] * filling
    sources += sources[-shape.num_rows :] * filling
    places += [0] * (len(positions) - len(places))
    return [*slots, *positions, *sources, *places]


class GridBatch:
    """The attention of a grid's rows: each to its session's slots, up to its own position.

    Shapes: `first_slots` (sessions, 1), `positions` (sessions, rows), `columns` (context).
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
        # Beyond a session's last token its last slot is read again: other slots may hold anything, NaN included.
        self._read_slots = (first_slots + torch.minimum(columns, positions[:, -1:])).flatten()
        self._masks = {window: self._mask(positions[:, :, None], columns, window) for window in set(windows)}

    def _mask(self, positions: torch.Tensor, columns: torch.Tensor, window: int | None) -> torch.Tensor:
        """An additive mask of shape (1, sessions, heads that share keys x rows, context)."""
        seen = columns <= positions
        if window:
            seen &= columns > positions - window
        cache, sessions = self._grid.extent, self._grid.shape.num_sessions
        mask = torch.zeros(seen.shape, dtype=cache.dtype, device=cache.device).masked_fill_(~seen, float("-inf"))
        return mask[:, None].expand(-1, self._grid.group_size, -1, -1).reshape(1, sessions, -1, len(columns))

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        kernel: Kernel,  # noqa: ARG002 - of a session's own tokens; here all sessions are one product
    ) -> torch.Tensor:
        """As `PackedBatch.attend`."""
        sessions, rows, context = self._grid.shape
        cache = self._grid.keys_values(layer)
        for half, new in zip(cache, (key, value), strict=True):
            half.index_copy_(1, self._write_slots, new[0])
        kv_heads, head_size = cache.shape[1], cache.shape[3]
        keys, values = cache.index_select(2, self._read_slots).view(2, kv_heads, sessions, context, head_size)
        # Heads that share keys are rows of one product: (KV heads, sessions, heads x rows, head size).
        queries = query.view(kv_heads, -1, sessions, rows, head_size).transpose(1, 2)
        grouped = queries.reshape(kv_heads, sessions, -1, head_size)
        out = sdpa(grouped, keys, values, attn_mask=self._masks[self._windows[layer]], scale=scaling)
        parted = out.view(kv_heads, sessions, -1, rows, head_size).transpose(1, 2)
        return parted.reshape(1, -1, sessions * rows, head_size)


Replay = Callable[[], torch.Tensor]
"""Computes `GridPass.run` anew from the grid's tensors; the next replay overwrites what it returns."""


class CudaGraphs:
    """The graphs of one model, by shape. A shape is captured when it comes for the second time.

    Args:
        capture: makes the replay of a pass, which has been filled.
    """

    def __init__(self, model: DecomposedModel, capture: "Callable[[GridPass], Replay] | None" = None) -> None:
        self._model, self._capture = model, capture or GraphCapture(model.device)
        self._seen_once: set[tuple[int, ...]] = set()
        self._graphs: dict[tuple[int, ...], tuple[GridPass, Replay]] = {}

    def run(
        self, hidden: torch.Tensor, chains: Sequence[ChainInput], start_layer: int, end_layer: int
    ) -> torch.Tensor | None:
        """Hidden states behind layer end_layer-1, of shape (tokens, hidden), whose keys and values are then cached.

        None for a pass that has no graph. The caches have room for the tokens.
        """
        shape, placed = grid_shape(chains), [chain.cache.place() for chain in chains]
        if shape is None or any(place is None for place in placed):
            return None
        extents, first_slots = zip(*[place for place in placed if place is not None], strict=True)
        if any(extent is not extents[0] for extent in extents):
            return None
        key = (*shape, start_layer, end_layer, id(extents[0]))
        graph = self._graphs.pop(key, None)
        if graph is None:
            if key not in self._seen_once:
                self._seen_once.add(key)
                return None
            first_layer = chains[0].cache.start_layer
            grid = GridPass(self._model, shape, extents[0], first_layer, start_layer, end_layer)
            grid.fill(hidden, chains, first_slots)
            graph = grid, self._capture(grid)
            if len(self._graphs) == _MAX_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
        self._graphs[key] = graph  # the last one used stands last
        graph[0].fill(hidden, chains, first_slots)
        return graph[0].read(graph[1](), sum(chain.num_tokens for chain in chains))


class GraphCapture:
    """Captures passes on a GPU; all graphs share the memory of what they compute between."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, grid: GridPass) -> Replay:
        stream, graph = torch.cuda.Stream(self._device), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(stream):
            grid.run()  # libraries make their handles and choose their kernels in a first run
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            output = grid.run()
            graph.capture_end()
        torch.cuda.synchronize(self._device)
        self._pool = graph.pool()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay


def captures(model: DecomposedModel) -> bool:
    """True if the model's passes can be captured: on a GPU, with plain weights, one table of rotary embeddings."""
    weights = [each for layer in model.layers for each in layer.parameters()]
    plain = all(each.dtype == model.dtype for each in weights)
    return model.device.type == "cuda" and plain and model.rotary.original_max_positions is None
