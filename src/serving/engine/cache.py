"""The KV cache: one growing slot per session and span, so that no batch is ever assembled or taken apart."""

import torch

from serving.depths import Depths
from serving.engine.model import Model

_SMALLEST = 64


class CacheHoleError(RuntimeError):
    """Work that begins behind the end of its session's cache."""


class Slot:
    """Keys and values of one session for layers first..last-1; tokens 0..length-1 are valid, the rest is stale.

    The store has the shape (keys and values, layers, 1, KV heads, capacity, head size). Of a drafter that leaves early,
    layer i is valid up to `depths.first_below(i)` only; `waiting` are the hidden states of the tokens that have not run
    all layers, in order, for the layer that each is to enter next.
    """

    __slots__ = ("_store", "depths", "drafts_at", "first", "length", "waiting")

    def __init__(self, model: Model, first: int, last: int) -> None:
        self.first, self.length, self.drafts_at = first, 0, 0
        self.depths: Depths | None = None
        self.waiting: list[torch.Tensor] = []
        shape = (2, last - first, 1, model.kv_heads, _SMALLEST, model.head_size)
        self._store = torch.empty(shape, dtype=model.dtype, device=model.device)

    @property
    def capacity(self) -> int:
        return self._store.shape[4]

    @property
    def nbytes(self) -> int:
        return self._store.nbytes

    def views(self, first: int, last: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Keys and values of tokens first..last-1, a view of shape (1, KV heads, tokens, head size) per layer."""
        keys, values = self._store.narrow(4, first, last - first).unbind(0)
        return keys.unbind(0), values.unbind(0)

    def reserve(self, length: int) -> None:
        """Makes room for `length` tokens and some more, at least doubling: growth copies all there is."""
        if length <= self.capacity:
            return
        shape = list(self._store.shape)
        shape[4] = max(length + _SMALLEST, 2 * self.capacity)
        store = self._store.new_empty(shape)
        store[..., : self.length, :] = self._store[..., : self.length, :]
        self._store = store

    def compact(self, drafts: tuple[int, ...]) -> None:
        """Moves the surviving drafts of the last forward to where drafts began, in the order given."""
        at = self.drafts_at
        if max(drafts, default=-1) >= self.length - at:
            raise CacheHoleError(f"draft {max(drafts)} is kept, but only {self.length - at} drafts are in the cache")
        kept = torch.tensor([at + i for i in drafts], dtype=torch.long, device=self._store.device)
        self._store[..., at : at + len(drafts), :] = self._store.index_select(4, kept)
        self.length = at + len(drafts)

    def truncate(self, start: int, session: str) -> None:
        """Rolls back to `start` tokens. Raises CacheHoleError when fewer are cached."""
        if self.length < start:
            raise CacheHoleError(
                f"session {session!r} begins at token {start}, but only {self.length} tokens are cached"
            )
        self.length = start
        if self.depths is not None:
            self.depths.truncate(start)
            del self.waiting[self.depths.short :]


class Cache:
    """The slots of one model, by session and part: the first layer of a span, or None for the drafter's."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._slots: dict[tuple[str, int | None], Slot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def nbytes(self) -> int:
        return sum(slot.nbytes for slot in self._slots.values())

    def length(self, session: str, part: int | None) -> int:
        """How many tokens are cached; 0 for a session that is not known."""
        slot = self._slots.get((session, part))
        return slot.length if slot else 0

    def open(self, session: str, part: int | None, last: int, start: int, keep: tuple[int, ...] | None = None) -> Slot:
        """The slot of a session, rolled back to `start`, after `keep` chose among the drafts of its last forward.

        Raises CacheHoleError when the cache is shorter than `start`.
        """
        slot = self._slots.get((session, part))
        if slot is None:
            slot = self._slots[session, part] = Slot(self._model, part or 0, last)
        if keep is not None:
            slot.compact(keep)
        slot.truncate(start, session)
        return slot

    def drop(self, session: str, part: int | None) -> None:
        """Frees the slot, if there is one."""
        self._slots.pop((session, part), None)
