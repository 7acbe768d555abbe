"""A rate from radio's figures."""

from dataclasses import dataclass
from functools import cached_property
from math import isfinite, log2

from serving.network.rate import Constant, Direction, Rate


@dataclass(frozen=True)
class Shannon:
    """R = B log2(1 + SINR), the capacity of a channel (Hyperion, section III-B)."""

    bandwidth_mhz: float
    sinr_db: float

    def __post_init__(self) -> None:
        if not (self.bandwidth_mhz > 0 and isfinite(self.bandwidth_mhz)):
            raise ValueError(f"network: bandwidth_mhz={self.bandwidth_mhz} must be more than 0, and finite.")
        if not isfinite(self.sinr_db):
            raise ValueError(f"network: sinr_db={self.sinr_db} must be a finite number of decibels.")

    @property
    def directions(self) -> tuple[Direction, ...]:
        return ("up", "down")

    @cached_property
    def mean_mbps(self) -> float:
        return self.bandwidth_mhz * log2(1 + 10 ** (self.sinr_db / 10))

    @property
    def described(self) -> str:
        return f"{self.mean_mbps:.4g} Mbit/s ({self.bandwidth_mhz:g} MHz at {self.sinr_db:g} dB)"

    def rate(self, direction: Direction, stream: int) -> Rate:  # noqa: ARG002 - the protocol's arguments
        return Constant(self.mean_mbps)
