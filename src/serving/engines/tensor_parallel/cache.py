"""The leader's KV cache: the same happens to the followers' as to its own."""

from contextlib import suppress

from serving.engines.tensor_parallel.commands import Drop, Open, Share
from serving.engines.tensor_parallel.worker_group import Team, TeamError
from serving.engines.torch.model import Model
from serving.engines.torch.model_runner import Lot
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
