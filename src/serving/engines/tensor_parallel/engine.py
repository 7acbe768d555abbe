"""The engine of the process that leads: to its node it is one like any other.

The leader's KV cache: the same happens to the followers' as to its own.

The leader's layers: every pass is one that all processes run.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import distributed

from serving.engines.tensor_parallel.commands import Drop, Open, Pass, Share
from serving.engines.tensor_parallel.worker_group import Team, TeamError
from serving.engines.torch.attention import Packed
from serving.engines.torch.engine import Engine
from serving.engines.torch.model import Absent, Model
from serving.engines.torch.model_runner import Lot, Stack
from serving.engines.torch.sequence_cache import Cache, Slot


class LedCache(Cache):
    """
    Args:
        number: which of the caches that the team's processes hold.
    """

    def __init__(
        self, team: Team, number: int, model: Model, block_tokens: int = 16, budget_tokens: float | None = None
    ) -> None:
        super().__init__(model, block_tokens, budget_tokens)
        self._team, self.number = team, number
        self._keys: dict[Slot, tuple[str, int | None]] = {}

    def open(self, session: str, part: int | None, last: int, start: int, keep: tuple[int, ...] | None = None) -> Slot:
        self._team.later(Open(self.number, session, part, last, self.length(session, part), start, keep))
        slot = super().open(session, part, last, start, keep)
        self._keys[slot] = session, part
        return slot

    def drop(self, session: str, part: int | None) -> None:
        slot = self._slots.get((session, part))
        if slot is None:
            return
        self._keys.pop(slot, None)
        super().drop(session, part)
        with suppress(TeamError):  # there is nothing left to free
            self._team.do(Drop(self.number, session, part))

    def share(self, lot: Lot) -> Share:
        """What followers are told of a lot."""
        slot = lot.slot
        return Share(*self._keys[slot], slot.length, slot.drafts_at, lot.n, lot.parents, lot.past)


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


class Leader(Engine):
    """Embeds, normalises, judges and answers alone; the blocks are run together with the team, cache and all.

    Args:
        team: whose processes hold the other shares of the model.
        nth: of its cache among those of engines that have the same team.
        options: as `Engine` takes them.
    """

    def __init__(self, team: Team, nth: int, model: Model, **options: Any) -> None:
        self._team, self._nth = team, nth
        super().__init__(model, **options)

    def _new_cache(self, block_tokens: int, budget_tokens: float | None) -> Cache:
        return LedCache(self._team, self._nth, self.model, block_tokens, budget_tokens)

    def _new_stack(self, vocabulary: int) -> Stack:
        assert isinstance(self.cache, LedCache)
        return LedStack(self._team, self.cache, self.model, vocabulary)
