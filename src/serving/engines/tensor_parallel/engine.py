"""The engine of the process that leads: to its node it is one like any other."""

from typing import Any

from serving.engines.tensor_parallel.cache import LedCache
from serving.engines.tensor_parallel.stack import LedStack
from serving.engines.tensor_parallel.worker_group import Team
from serving.engines.torch.engine import Engine
from serving.engines.torch.model import Model
from serving.engines.torch.model_runner import Stack
from serving.engines.torch.sequence_cache import Cache


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
