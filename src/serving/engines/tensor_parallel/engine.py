"""The engine of rank 0: mirrors its cache operations to the other ranks, and runs every pass together with them."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import distributed

from serving.engines.tensor_parallel.commands import FreeCache, InputSpec, OpenCache, RunLayers
from serving.engines.tensor_parallel.worker_group import WorkerGroup, WorkerGroupError
from serving.engines.torch.attention import PackedBatch
from serving.engines.torch.cuda_graph import CudaGraphs
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import DecomposedModel, MissingLayer
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import KVCacheManager, SequenceCache


class TPCacheManager(KVCacheManager):
    """Rank 0's caches; every rank performs the same operations.

    Args:
        cache_id: which of the worker group's cache managers this is.
    """

    def __init__(
        self,
        workers: WorkerGroup,
        cache_id: int,
        model: DecomposedModel,
        block_tokens: int = 16,
        budget_tokens: float | None = None,
    ) -> None:
        super().__init__(model, block_tokens, budget_tokens)
        self._workers, self.cache_id = workers, cache_id
        self._keys: dict[SequenceCache, tuple[str, int | None]] = {}

    def open(
        self,
        session: str,
        start_layer: int | None,
        end_layer: int,
        start: int,
        kept_tree_nodes: tuple[int, ...] | None = None,
    ) -> SequenceCache:
        self._workers.enqueue(
            OpenCache(
                self.cache_id,
                session,
                start_layer,
                end_layer,
                self.length(session, start_layer),
                start,
                kept_tree_nodes,
            )
        )
        cache = super().open(session, start_layer, end_layer, start, kept_tree_nodes)
        self._keys[cache] = session, start_layer
        return cache

    def drop(self, session: str, start_layer: int | None) -> None:
        cache = self._caches.get((session, start_layer))
        if cache is None:
            return
        self._keys.pop(cache, None)
        super().drop(session, start_layer)
        with suppress(WorkerGroupError):  # there is nothing left to free
            self._workers.execute(FreeCache(self.cache_id, session, start_layer))

    def input_spec(self, entry: RunnerInput) -> InputSpec:
        """The input as the other ranks need it."""
        cache = entry.cache
        return InputSpec(
            *self._keys[cache], cache.length, cache.draft_start, entry.num_tokens, entry.parents, entry.num_cached
        )


class TPModelRunner(ModelRunner):
    """Checks the inputs before it sends a command. Raises WorkerGroupError if a process fails."""

    def __init__(self, workers: WorkerGroup, cache: TPCacheManager, model: DecomposedModel, vocab_size: int) -> None:
        super().__init__(model, vocab_size)
        self._workers, self._cache = workers, cache

    def _run_layers(
        self,
        hidden: torch.Tensor,
        inputs: Sequence[RunnerInput],
        start_layer: int,
        end_layer: int,
        packed: PackedBatch,
        rotary: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        self._check(hidden, inputs, start_layer, end_layer, packed)
        with self._workers.executing(
            RunLayers(self._cache.cache_id, start_layer, end_layer, tuple(map(self._cache.input_spec, inputs)))
        ):
            hidden = hidden.contiguous()
            distributed.broadcast(hidden, 0)
            return super()._run_layers(hidden, inputs, start_layer, end_layer, packed, rotary)

    def _check(
        self, hidden: torch.Tensor, inputs: Sequence[RunnerInput], start_layer: int, end_layer: int, packed: PackedBatch
    ) -> None:
        if any(segment.importance is not None for segment in packed.segments):
            raise ValueError("importance is averaged over all heads, and a model that is shared has some of them here")
        num_tokens = sum(entry.num_tokens for entry in inputs)
        if hidden.shape != (num_tokens, self.model.hidden_size):
            raise ValueError(
                f"hidden states of shape {tuple(hidden.shape)} came for {num_tokens} of ({self.model.hidden_size})"
            )
        for layer in self.model.layers[start_layer:end_layer]:
            if isinstance(layer, MissingLayer):
                layer()


class TPEngine(TorchEngine):
    """Runs the layers together with a worker group; embedding, norm, head and verdicts run in this process only.

    Args:
        workers: the processes that hold the other shards of the model.
        cache_id: the number of this engine among those with the same workers.
        options: as for `TorchEngine`.
    """

    def __init__(self, workers: WorkerGroup, cache_id: int, model: DecomposedModel, **options: Any) -> None:
        self._workers, self._cache_id = workers, cache_id
        super().__init__(model, **options)

    def _new_cache(self, block_tokens: int, budget_tokens: float | None) -> KVCacheManager:
        return TPCacheManager(self._workers, self._cache_id, self.model, block_tokens, budget_tokens)

    def _new_runner(self, vocab_size: int, graphs: CudaGraphs | None) -> ModelRunner:  # noqa: ARG002 - sums cross processes
        assert isinstance(self.cache, TPCacheManager)
        return TPModelRunner(self._workers, self.cache, self.model, vocab_size)
