"""The KV caches of an exported model: per session the arrays that the last pass left, and how much of them holds."""

import numpy as np

from serving.engines.onnx.session import Floats
from serving.engines.torch.sequence_cache import CacheHoleError


class Slot:
    """Keys and values of one session; tokens 0..length-1 are valid, the rest is stale."""

    __slots__ = ("_arrays", "length")

    def __init__(self, empty: list[Floats]) -> None:
        self._arrays, self.length = empty, 0

    def held(self) -> list[Floats]:
        """What the next pass goes behind; copied only after a rollback."""
        if self._arrays[0].shape[2] != self.length:
            self._arrays = [np.ascontiguousarray(one[:, :, : self.length]) for one in self._arrays]
        return self._arrays

    def grow(self, present: list[Floats]) -> None:
        self._arrays, self.length = present, present[0].shape[2]

    def truncate(self, start: int, session: str) -> None:
        """Rolls back to `start` tokens. Raises CacheHoleError when fewer are cached."""
        if self.length < start:
            raise CacheHoleError(
                f"session {session!r} begins at token {start}, but only {self.length} tokens are cached"
            )
        self.length = start


class Cache:
    """The slots of one model, by session."""

    def __init__(self, empty: list[Floats]) -> None:
        self._empty = empty
        self._slots: dict[str, Slot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def length(self, session: str) -> int:
        """How many tokens are cached; 0 for a session that is not known."""
        slot = self._slots.get(session)
        return slot.length if slot else 0

    def open(self, session: str, start: int) -> Slot:
        """The slot of a session, rolled back to `start`. Raises CacheHoleError when the cache is shorter."""
        slot = self._slots.setdefault(session, Slot(self._empty))
        slot.truncate(start, session)
        return slot

    def drop(self, session: str) -> None:
        self._slots.pop(session, None)
