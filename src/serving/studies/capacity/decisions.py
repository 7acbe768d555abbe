"""How long a scheduler decides on each batch, in wall seconds of this machine."""

from collections.abc import Sequence
from statistics import fmean, median
from time import perf_counter

from serving.core.queued_request import Item
from serving.core.room import Room
from serving.hardware.estimator import Estimator
from serving.policy.slots.scheduler import Batch, Scheduler


class Clocked:
    """A scheduler whose decisions are timed."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._pick = scheduler.pick
        self.spent_s: list[float] = []
        self.waiting = 0
        """The most requests that one decision looked at."""

    def pick(self, items: Sequence[Item], now: float, room: Room, estimator: Estimator) -> Batch | float:
        began = perf_counter()
        picked = self._pick(items, now, room, estimator)
        self.spent_s.append(perf_counter() - began)
        self.waiting = max(self.waiting, len(items))
        return picked

    def figures(self) -> dict[str, float]:
        """Milliseconds a decision; nothing where none was made."""
        if not self.spent_s:
            return {}
        return {
            "decision_ms": 1e3 * fmean(self.spent_s),
            "decision_ms_median": 1e3 * median(self.spent_s),
            "decision_ms_max": 1e3 * max(self.spent_s),
            "waiting_max": float(self.waiting),
        }
