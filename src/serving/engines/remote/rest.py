"""A server that failed is left alone for a moment."""

from collections.abc import Callable
from threading import Lock

WAITED = 12
"""Rests in a row that are waited out: by default a minute, and whoever has not come back by then is gone."""


class Rest:
    """
    Args:
        rest_s: how long it lasts.
        waits: for a run on virtual time, in which devices ask 64 times in a moment of ours: a question that comes
            during a rest is held back until it is over, in place of an error.
    """

    def __init__(self, rest_s: float, waits: bool, sleep: Callable[[float], None], clock: Callable[[], float]) -> None:
        self._rest_s, self._waits, self._sleep, self._clock = rest_s, waits, sleep, clock
        self._until_s, self._barred, self._in_a_row, self._lock = 0.0, False, 0, Lock()
        self.why = ""

    def over(self) -> bool:
        """May it be asked now?"""
        left_s = self._until_s - self._clock()
        if left_s <= 0:
            return True
        if self._barred or not self._waits or self._in_a_row > WAITED:
            return False
        self._sleep(left_s)
        return True

    def begin(self, why: str, barred: bool = False) -> None:
        """`barred`: no question will be answered with this key, so that none is worth waiting for."""
        with self._lock:
            now = self._clock()
            self._in_a_row += now >= self._until_s  # several questions at once fail of one cause
            self.why, self._barred, self._until_s = why, barred, now + self._rest_s

    def answered(self) -> None:
        self._in_a_row = 0
