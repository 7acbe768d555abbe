"""Passes that a GPU replays as CUDA graphs: launching their kernels one by one takes longer than running them."""

import logging
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import torch

from serving.engines.torch.grid_pass import ChainInput, GridPass, grid_shape
from serving.engines.torch.model import DecomposedModel

MAX_GRAPHS = 128
"""The profile of a model on a GPU (123 and 50 configurations) has 77 shapes."""

Replay = Callable[[], torch.Tensor]
"""Computes `GridPass.run` anew from the grid's tensors; the next replay overwrites what it returns."""
GraphKey = tuple[int, ...]
"""Shape, layers and extent."""


class CudaGraphs:
    """The graphs of one model: a shape is captured when it comes for the second time, and the least recently used one
    goes first.

    Args:
        capture: makes the replay of a filled `GridPass`. A shape for which it raises RuntimeError is logged, and not
            captured again.
    """

    def __init__(self, model: DecomposedModel, capture: Callable[[GridPass], Replay] | None = None) -> None:
        self._model, self._capture = model, capture or GraphCapture(model.device)
        self._may_capture: dict[GraphKey, tuple[ref[torch.Tensor], bool]] = {}
        """Of the shapes that came before: their extent, and False if the capture failed."""
        self._graphs: dict[GraphKey, tuple[GridPass, Replay]] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def run(
        self, hidden: torch.Tensor, chains: Sequence[ChainInput], start_layer: int, end_layer: int
    ) -> torch.Tensor | None:
        """Runs the pass of `chains`, which are inputs without trees, and stores their keys and values.

        Returns the hidden states behind layer end_layer-1, of shape (tokens, hidden); None if the pass has no graph.
        The caches have room for the tokens.
        """
        shape, slots = grid_shape(chains), _slots(chains)
        if shape is None or slots is None:
            return None
        extent, first_slots = slots
        key = (*shape, start_layer, end_layer, id(extent))
        grid, replay = self._graphs.pop(key, (None, None))
        if grid is None or grid.extent is None:  # the number of a freed extent may be that of a new one
            if not self._is_due(key, extent):
                return None
            first_layer = chains[0].cache.start_layer
            grid, replay = GridPass(self._model, shape, extent, first_layer, start_layer, end_layer), None
        grid.fill(hidden, chains, first_slots)
        replay = replay or self._captured(grid, key)
        if replay is None:
            return None
        self._graphs[key] = grid, replay
        return grid.read(replay(), sum(chain.num_tokens for chain in chains))

    def _is_due(self, key: GraphKey, extent: torch.Tensor) -> bool:
        """True if a pass of this shape came before in this extent, and its capture has not failed."""
        known, is_due = self._may_capture.get(key, (None, False))
        if known is None or known() is not extent:
            self._may_capture[key] = ref(extent), True
            return False
        return is_due

    def _captured(self, grid: GridPass, key: GraphKey) -> Replay | None:
        """None for a capture that failed; room is made for it before."""
        self._graphs = {known: graph for known, graph in self._graphs.items() if graph[0].extent is not None}
        self._may_capture = {known: flag for known, flag in self._may_capture.items() if flag[0]() is not None}
        if len(self._graphs) >= MAX_GRAPHS:
            oldest = next(iter(self._graphs))
            del self._graphs[oldest]
            del self._may_capture[oldest]
        try:
            return self._capture(grid)
        except RuntimeError as error:
            logging.getLogger(__name__).warning("%s: %s is not replayed: %s", self._model.name, grid.shape, error)
            self._may_capture[key] = self._may_capture[key][0], False
            return None


def _slots(chains: Sequence[ChainInput]) -> tuple[torch.Tensor, list[int]] | None:
    """The extent in which all caches lie, and the slot at which each begins; None if there is no such extent."""
    found = [slot for slot in (chain.cache.extent_slot() for chain in chains) if slot is not None]
    if len(found) < len(chains) or any(extent is not found[0][0] for extent, _ in found):
        return None
    return found[0][0], [slot for _, slot in found]


class GraphCapture:
    """Captures passes on a GPU, all on one stream, so that graphs share the memory of what they compute between."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None
        self._pool: Any = None

    def __call__(self, grid: GridPass) -> Replay:
        """Raises RuntimeError where memory does not suffice, or an operation cannot be captured."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._stream):
            grid.run()  # libraries make their handles and choose their kernels in a first run
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                output = grid.run()
            finally:
                graph.capture_end()
        torch.cuda.synchronize(self._device)
        self._pool = graph.pool()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay


def can_capture(model: DecomposedModel) -> bool:
    """True if the model's passes can be captured: on a GPU, with plain weights and products, and one rotary table."""
    modules = [module for layer in model.layers for module in layer.modules()]
    weights = [weight for module in modules for weight in module.parameters(recurse=False)]
    is_plain = all(weight.dtype == model.dtype for weight in weights)
    is_invariant = any(isinstance(module, torch.nn.Linear) and "forward" in vars(module) for module in modules)
    has_one_table = model.rotary.original_max_positions is None
    return model.device.type == "cuda" and is_plain and not is_invariant and has_one_table
