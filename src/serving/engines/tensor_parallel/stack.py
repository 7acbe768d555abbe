"""The leader's layers: every pass is one that all processes run."""

from collections.abc import Sequence

import torch
from torch import distributed

from serving.engines.tensor_parallel.cache import LedCache
from serving.engines.tensor_parallel.commands import Pass
from serving.engines.tensor_parallel.worker_group import Team
from serving.engines.torch.attention import Packed
from serving.engines.torch.model import Absent, Model
from serving.engines.torch.model_runner import Lot, Stack


class LedStack(Stack):
    """Raises what is wrong with the rows before anybody is told of them, and TeamError where one process fails."""

    def __init__(self, team: Team, cache: LedCache, model: Model, vocabulary: int) -> None:
        super().__init__(model, vocabulary)
        self._team, self._cache = team, cache

    def _through(
        self, hidden: torch.Tensor, lots: Sequence[Lot], first: int, last: int, packed: Packed,
        rotary: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:  # fmt: skip
        self._check(hidden, lots, first, last, packed)
        with self._team.doing(Pass(self._cache.number, first, last, tuple(map(self._cache.share, lots)))):
            hidden = hidden.contiguous()
            distributed.broadcast(hidden, 0)
            return super()._through(hidden, lots, first, last, packed, rotary)

    def _check(self, hidden: torch.Tensor, lots: Sequence[Lot], first: int, last: int, packed: Packed) -> None:
        if packed.importance is not None:
            raise ValueError("importance is averaged over all heads, and a model that is shared has some of them here")
        rows = sum(lot.n for lot in lots)
        if hidden.shape != (rows, self.model.hidden):
            raise ValueError(f"hidden states of shape {tuple(hidden.shape)} came for {rows} of ({self.model.hidden})")
        for layer in self.model.layers[first:last]:
            if isinstance(layer, Absent):
                layer()
