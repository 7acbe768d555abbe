"""A place of the map: round trip, acceptance, device and number of devices; and the grid of all places."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import isfinite
from typing import Literal

Axis = Literal["round_trip_ms", "num_devices"]
"""What a border is looked for along."""


@dataclass(frozen=True)
class Place:
    """One place of the map; `device` names a chip of the contest."""

    round_trip_ms: float
    acceptance: float
    device: str
    num_devices: int

    def moved(self, axis: Axis, value: float) -> "Place":
        """The place with another round trip, or another number of devices."""
        return replace(self, round_trip_ms=value) if axis == "round_trip_ms" else replace(self, num_devices=int(value))


@dataclass(frozen=True)
class Grid:
    """All combinations of these values with the devices of the contest. Raises ValueError for values that are out of
    range, not increasing or none.

    Args:
        sparse_from: from this many devices on, where a place takes long and a busy chip hides the link, only every
            second round trip and acceptance; None: nowhere.
    """

    round_trips_ms: tuple[float, ...]
    acceptances: tuple[float, ...]
    num_devices: tuple[int, ...]
    sparse_from: int | None = None

    def __post_init__(self) -> None:
        for name in ("round_trips_ms", "acceptances", "num_devices"):
            values = getattr(self, name)
            if not values or any(a >= b for a, b in pairwise(values)):
                raise ValueError(f"grid.{name} is {list(values)}; give one value at least, each above the one before")
        if not (isfinite(self.round_trips_ms[-1]) and self.round_trips_ms[0] >= 0):
            raise ValueError(f"grid.round_trips_ms is {list(self.round_trips_ms)}; give milliseconds, 0 or more")
        if not (self.acceptances[0] > 0 and self.acceptances[-1] < 1):
            raise ValueError(f"grid.acceptances is {list(self.acceptances)}; give shares above 0 and below 1")
        if self.num_devices[0] < 1:
            raise ValueError(f"grid.num_devices is {list(self.num_devices)}; a load has 1 device at least")

    def places(self, devices: tuple[str, ...]) -> Iterator[Place]:
        """The places, those of one device and load together."""
        for device, count in product(devices, self.num_devices):
            step = 1 if self.sparse_from is None or count < self.sparse_from else 2
            for acceptance, round_trip_ms in product(self.acceptances[::step], self.round_trips_ms[::step]):
                yield Place(round_trip_ms, acceptance, device, count)
