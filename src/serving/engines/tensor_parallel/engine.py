"""The engine of the process that leads: to its node it is one like any other.

The leader's KV cache: the same happens to the followers' as to its own.

The leader's layers: every pass is one that all processes run.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import distributed

from serving.engines.tensor_parallel.commands import FreeCache, InputSpec, OpenCache, RunLayers
from serving.engines.tensor_parallel.worker_group import WorkerGroup, WorkerGroupError
from serving.engines.torch.attention import PackedBatch
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import DecomposedModel, MissingLayer
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import KVCacheManager, SequenceCache


class TPCacheManager(KVCacheManager):
    """
    Args:
        number: which of the caches that the team's processes hold.
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
        slot = super().open(session, start_layer, end_layer, start, kept_tree_nodes)
        self._keys[slot] = session, start_layer
        return slot

    def drop(self, session: str, start_layer: int | None) -> None:
        slot = self._caches.get((session, start_layer))
        if slot is None:
            return
        self._keys.pop(slot, None)
        super().drop(session, start_layer)
        with suppress(WorkerGroupError):  # there is nothing left to free
            self._workers.execute(FreeCache(self.cache_id, session, start_layer))

    def input_spec(self, entry: RunnerInput) -> InputSpec:
        """What followers are told of a lot."""
        slot = entry.cache
        return InputSpec(
            *self._keys[slot], slot.length, slot.draft_start, entry.num_tokens, entry.parents, entry.num_cached
        )


class TPModelRunner(ModelRunner):
    """Raises what is wrong with the rows before anybody is told of them, and TeamError where one process fails."""

    def __init__(self, workers: WorkerGroup, cache: TPCacheManager, model: DecomposedModel, vocab_size: int) -> None:
        super().__init__(model, vocab_size)
        self._workers, self._cache = workers, cache

    def _run_layers(
        self, hidden: torch.Tensor, inputs: Sequence[RunnerInput], start_layer: int, end_layer: int, packed: PackedBatch,
        rotary: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:  # fmt: skip
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
        if packed.importance is not None:
            raise ValueError("importance is averaged over all heads, and a model that is shared has some of them here")
        rows = sum(lot.num_tokens for lot in inputs)
        if hidden.shape != (rows, self.model.hidden_size):
            raise ValueError(
                f"hidden states of shape {tuple(hidden.shape)} came for {rows} of ({self.model.hidden_size})"
            )
        for layer in self.model.layers[start_layer:end_layer]:
            if isinstance(layer, MissingLayer):
                layer()


class TPEngine(TorchEngine):
    """Embeds, normalises, judges and answers alone; the blocks are run together with the team, cache and all.

    Args:
        team: whose processes hold the other shares of the model.
        nth: of its cache among those of engines that have the same team.
        options: as `Engine` takes them.
    """

    def __init__(self, workers: WorkerGroup, cache_id: int, model: DecomposedModel, **options: Any) -> None:
        self._workers, self._cache_id = workers, cache_id
        super().__init__(model, **options)

    def _new_cache(self, block_tokens: int, budget_tokens: float | None) -> KVCacheManager:
        return TPCacheManager(self._workers, self._cache_id, self.model, block_tokens, budget_tokens)

    def _new_runner(self, vocab_size: int) -> ModelRunner:
        assert isinstance(self.cache, TPCacheManager)
        return TPModelRunner(self._workers, self.cache, self.model, vocab_size)
