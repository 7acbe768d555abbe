"""Recordings of links: cumulative capacity curves that repeat when they end, and their replay."""

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Generic, Literal, TypeVar

from serving.core.keyed_random import uniform
from serving.network.rate import TrafficDirection

# A message that exactly fills the rest must not wait because of rounding: at 10^5 s and 400 Mbit/s a float is off by
# a thousandth of a byte.
_SLACK_NBYTES = 0.01


@dataclass(frozen=True)
class CapacityCurve:
    """Cumulative bytes that could have left by each time of a recording: linear between points (`times_s`, `nbytes`).

    Both start with 0 and end with the recording's length and total. All replays share them.
    """

    times_s: "array[float]"
    nbytes: "array[float]"

    @classmethod
    def from_steps(cls, steps: Iterable[tuple[float, float]], source: str) -> "CapacityCurve":
        """Builds the curve from rates that change in steps: (until second, Mbit/s) in order of time, from second 0.

        Raises ValueError that names the `source` if all rates are 0.
        """
        times_s, nbytes = array("d", [0.0]), array("d", [0.0])
        for until_s, mbps in steps:
            nbytes.append(nbytes[-1] + (until_s - times_s[-1]) * mbps * 125_000)
            times_s.append(until_s)
        if not nbytes[-1] > 0:
            raise ValueError(f"{source}: every rate is 0, so no message would ever leave")
        return cls(times_s, nbytes)

    @property
    def period_s(self) -> float:
        return self.times_s[-1]

    @property
    def mean_mbps(self) -> float:
        return self.nbytes[-1] / self.period_s / 125_000

    def nbytes_by(self, time_s: float) -> float:
        """Bytes that could have left from second 0 until `time_s`; the recording repeats."""
        times_s, nbytes = self.times_s, self.nbytes
        lap, phase_s = divmod(time_s, times_s[-1])
        i = min(bisect_right(times_s, phase_s), len(times_s) - 1)
        share = (phase_s - times_s[i - 1]) / (times_s[i] - times_s[i - 1])
        return lap * nbytes[-1] + nbytes[i - 1] + share * (nbytes[i] - nbytes[i - 1])

    def time_of(self, cumulative_nbytes: float) -> float:
        """The first time by which `cumulative_nbytes` could have left."""
        times_s, nbytes = self.times_s, self.nbytes
        lap, rest = divmod(max(0.0, cumulative_nbytes - _SLACK_NBYTES), nbytes[-1])
        i = min(bisect_right(nbytes, rest), len(nbytes) - 1)
        share = min(1.0, (rest + _SLACK_NBYTES - nbytes[i - 1]) / (nbytes[i] - nbytes[i - 1]))
        return lap * times_s[-1] + times_s[i - 1] + share * (times_s[i] - times_s[i - 1])


@dataclass(frozen=True, slots=True)
class ReplayedRate:
    """The rate of one device that replays the curve; its second 0 is `offset_s` in the recording."""

    curve: CapacityCurve
    offset_s: float = 0.0

    def departure_s(self, nbytes: float, start_s: float) -> float:
        if not nbytes > 0:
            return start_s
        at_s = start_s + self.offset_s
        return max(start_s, self.curve.time_of(self.curve.nbytes_by(at_s) + nbytes) - self.offset_s)

    def nbytes_between(self, start_s: float, end_s: float) -> float:
        return self.curve.nbytes_by(end_s + self.offset_s) - self.curve.nbytes_by(start_s + self.offset_s)


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class LinkRecording(ABC, Generic[T]):
    """A recording in a file of one format, read once when the object is created and shared by all devices.

    The path of an artifact that does not exist yet is not read, and `Link` refuses a path of None. Raises ValueError
    that names file and line for a malformed file.
    """

    path: Path | None = field(default=None, repr=False)
    """No part of the repr: `Topology.digest`."""
    start: Literal["random", "begin"] = "random"
    """Start of each device: the beginning, or a random point, at the same share of all its recordings' lengths.
    """

    def __post_init__(self) -> None:
        if self.start not in ("random", "begin"):
            raise ValueError(f"network: a recording's start={self.start!r} must be random or begin.")
        if isinstance(self.path, Path):
            _ = self.data

    @abstractmethod
    def read(self, path: Path) -> T:
        """Parses the file. Raises ValueError that names file and line."""

    @cached_property
    def data(self) -> T:
        path = Path(str(self.path))
        if not path.is_file():
            problem = "is a folder; a recording is one file" if path.is_dir() else "does not exist"
            raise ValueError(f"network: {path} {problem}.")
        return self.read(path)

    @property
    def file_name(self) -> str:
        return Path(str(self.path)).name

    def start_fraction(self, stream: int) -> float:
        """Start of the device with this `stream`, as a share of the length."""
        return uniform(stream, 0, "start of a recording") if self.start == "random" else 0.0


@dataclass(frozen=True, kw_only=True)
class CapacityTrace(LinkRecording[CapacityCurve]):
    """A recording of the rate of one direction; a `serving.network.rate.LinkCapacity`."""

    directions: ClassVar[tuple[TrafficDirection, ...]] = ("up", "down")

    @property
    def mean_mbps(self) -> float:
        return self.data.mean_mbps

    @property
    def described(self) -> str:
        return f"{self.mean_mbps:.3g} Mbit/s on average ({self.file_name})"

    def rate(self, direction: TrafficDirection, stream: int) -> ReplayedRate:  # noqa: ARG002 - the protocol's argument
        return ReplayedRate(self.data, self.start_fraction(stream) * self.data.period_s)
