"""Protocols for the rate and delay of one direction of a link, and the rates that need no recording."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite, log2
from typing import Literal, Protocol, TypeAlias

TrafficDirection: TypeAlias = Literal["up", "down"]


class TransmitRate(Protocol):
    """The rate at which bits leave a host."""

    def departure_s(self, nbytes: float, start_s: float) -> float:
        """When the last of `nbytes` has left, if the first may leave at `start_s`."""
        ...

    def nbytes_between(self, start_s: float, end_s: float) -> float:
        """Bytes that can leave from `start_s` to `end_s`."""
        ...


class LinkCapacity(Protocol):
    """A rate of one direction that need not be constant; see `serving.network.trace` for recordings."""

    @property
    def directions(self) -> tuple[TrafficDirection, ...]:
        """Directions for which it has a rate."""
        ...

    @property
    def mean_mbps(self) -> float: ...

    @property
    def described(self) -> str: ...

    def rate(self, direction: TrafficDirection, stream: int) -> TransmitRate:
        """Rate of the device with this `stream` (from `serving.core.keyed_random.key`), in seconds of the run."""
        ...


class LinkDelay(Protocol):
    """A propagation delay that changes, for example `serving.network.ucc_5g.PingTrace`."""

    @property
    def mean_s(self) -> float:
        """Seconds one way, on average over time."""
        ...

    @property
    def described(self) -> str: ...

    def delay(self, stream: int) -> Callable[[float], float]:
        """Returns the device's function from departure time to one-way delay, both in seconds."""
        ...


@dataclass(frozen=True, slots=True)
class ConstantRate:
    mbps: float

    def departure_s(self, nbytes: float, start_s: float) -> float:
        return start_s + nbytes * 8e-6 / self.mbps

    def nbytes_between(self, start_s: float, end_s: float) -> float:
        return (end_s - start_s) * self.mbps / 8e-6


@dataclass(frozen=True)
class ShannonCapacity:
    """Channel capacity R = B log2(1 + SINR) (Hyperion, section III-B)."""

    bandwidth_mhz: float
    sinr_db: float

    def __post_init__(self) -> None:
        if not (self.bandwidth_mhz > 0 and isfinite(self.bandwidth_mhz)):
            raise ValueError(f"network: bandwidth_mhz={self.bandwidth_mhz} must be above 0 and finite.")
        if not isfinite(self.sinr_db):
            raise ValueError(f"network: sinr_db={self.sinr_db} must be a finite number of decibels.")
        if not 0 < self.mean_mbps < inf:
            raise ValueError(
                f"network: {self.bandwidth_mhz:g} MHz at sinr_db={self.sinr_db:g} carry "
                f"{self.mean_mbps:g} Mbit/s, and a link needs more than 0, and finite; give another sinr_db."
            )

    @property
    def directions(self) -> tuple[TrafficDirection, ...]:
        return ("up", "down")

    @cached_property
    def mean_mbps(self) -> float:
        try:
            return self.bandwidth_mhz * log2(1 + 10 ** (self.sinr_db / 10))
        except OverflowError:
            return inf

    @property
    def described(self) -> str:
        return f"{self.mean_mbps:.4g} Mbit/s ({self.bandwidth_mhz:g} MHz at {self.sinr_db:g} dB)"

    def rate(self, direction: TrafficDirection, stream: int) -> TransmitRate:  # noqa: ARG002 - the protocol's arguments
        return ConstantRate(self.mean_mbps)
