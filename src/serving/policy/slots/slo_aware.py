"""Slot `scheduler`: batches that keep their members' promises (WISP, Algorithm 1, section 4.3)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal, TypeAlias, get_args

from serving.core.kv_accounting import Room
from serving.core.queued_request import Item
from serving.hardware.estimator import Estimator
from serving.messages import INF
from serving.policy.slots.scheduler import Batch

Order: TypeAlias = Literal["deadline", "value"]
Ranked: TypeAlias = list[tuple[float, int, Item]]
"""(rank, place in the order of arrival, item)."""
_by_rank = itemgetter(0, 1)


@dataclass(frozen=True)
class SloAware:
    """Critical requests first, by deadline; then the others.

    A request is critical from `guard_s` before the last moment at which it can start alone (Eq. 17). The batch grows
    until a member would miss its deadline, or memory is spent (Eq. 14, 15); who is not critical leaves `guard_s` to the
    deadlines of all (section 4.4).

    The printed algorithm never dispatches again once a critical request is late. Here a late one, which no batch can
    help, joins behind the others as long as these are in time; and whoever has waited `patience_s` leads the next
    batch, so that nobody starves.

    order      of those that are not critical: by "deadline", or by "value", the expected tokens a second of
               verification (Eq. 16, as printed)
    waste      where somebody is late already, as late counts also who could be in time only in a batch so small that
               more than this share of it is the constant that every batch costs, though others wait; 1: nobody (as
               printed)
    """

    size: int = 64
    guard_s: float = 0.005
    patience_s: float = 1.0
    order: Order = "deadline"
    waste: float = 0.2

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"policy.scheduler.size is {self.size}; it must be at least 1")
        for name in ("guard_s", "patience_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"policy.scheduler.{name} is {getattr(self, name)}; it cannot be negative")
        if self.order not in get_args(Order):
            raise ValueError(f"policy.scheduler.order is {self.order!r}; it is {' or '.join(get_args(Order))}")
        if not 0 < self.waste <= 1:
            raise ValueError(f"policy.scheduler.waste is {self.waste}; it is a share of a batch: above 0, at most 1")

    def pick(self, items: Sequence[Item], now: float, room: Room, estimator: Estimator) -> Batch | float:
        """O(n log n) in the requests that wait."""
        span = items[0].span
        constant_s = estimator.constant_s(span)
        batch = _Growing(now + constant_s, room, estimator, self.size)
        patient, critical, calm, late = self._sorted(items, now, constant_s, estimator)
        batch.lead(patient)
        if batch.grow(critical, binding=True):
            batch.grow(calm, binding=True, guard_s=self.guard_s)
        batch.grow(late, binding=False, guard_s=self.guard_s)
        return batch.members

    def _sorted(
        self, items: Sequence[Item], now: float, constant_s: float, estimator: Estimator
    ) -> tuple[list[Item], list[Item], list[Item], list[Item]]:
        """`items` come in the order of arrival."""
        patient: list[Item] = []
        late: list[Item] = []
        critical: Ranked = []
        calm: Ranked = []
        long_since, guard_s, base_s = now - self.patience_s, self.guard_s, now + constant_s
        by_deadline = self.order == "deadline"
        costs_s = [estimator.share_s(item) for item in items]
        spares_s = [item.deadline - base_s - cost_s for item, cost_s in zip(items, costs_s, strict=True)]
        overloaded = min(spares_s) < 0
        others_s, filled_s = sum(costs_s), constant_s * (1 / self.waste - 1) if overloaded else 0.0
        for place, (item, cost_s, spare_s) in enumerate(zip(items, costs_s, spares_s, strict=True)):
            deadline = item.deadline
            if item.arrived <= long_since and not patient:
                patient.append(item)
            elif spare_s < max(0.0, min(filled_s, others_s) - cost_s):
                late.append(item)
            elif spare_s <= guard_s:
                critical.append((deadline, place, item))
            else:
                calm.append((deadline if by_deadline else _density(item, cost_s), place, item))
        critical.sort(key=_by_rank)
        calm.sort(key=_by_rank)
        return patient, [item for _, _, item in critical], [item for _, _, item in calm], late


def _density(item: Item, cost_s: float) -> float:
    """Rank of what brings most tokens a second of verification."""
    return -item.value / cost_s if cost_s else -INF


class _Growing:
    """A batch that is being built: when it would end, what it takes, by when its members need it."""

    def __init__(self, ends_s: float, room: Room, estimator: Estimator, size: int) -> None:
        self.members: Batch = []
        self.ends_s, self._due_s, self._taken = ends_s, INF, 0.0
        self._room, self._estimator, self._size = room, estimator, size

    def lead(self, items: Sequence[Item]) -> None:
        """Whatever it costs the others."""
        for item in items:
            self._add(item, INF, self._room.need(item))

    def grow(self, items: Iterable[Item], binding: bool, guard_s: float = 0.0) -> bool:
        """Adds items up to the first that does not go; `binding`: is their own deadline to be kept? Did all go?

        The batch stays `guard_s` short of its members' deadlines.
        """
        for item in items:
            due_s = min(self._due_s, item.deadline) if binding else self._due_s
            need = self._room.need(item)
            fits = len(self.members) < self._size and self._taken + need <= self._room.tokens
            in_time = self.ends_s + self._estimator.share_s(item) + guard_s <= due_s
            if self.members and not (fits and in_time):
                return False
            self._add(item, due_s, need)
        return True

    def _add(self, item: Item, due_s: float, need: float) -> None:
        self.members.append((item, item.left))
        self.ends_s += self._estimator.share_s(item)
        self._due_s, self._taken = due_s, self._taken + need
