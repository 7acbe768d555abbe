"""A chip's speed after minutes of load, when it is hot: a curve of shares of its cold speed."""

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Literal, TypeAlias, TypeVar

from serving.core.provenance import evidence_class
from serving.hardware.latency import LinearLatency
from serving.hardware.roofline import RooflineLatency

Heat: TypeAlias = Literal["cold", "sustained"]
LatencyT = TypeVar("LatencyT", bound=RooflineLatency | LinearLatency)


@dataclass(frozen=True)
class SustainedSpeed:
    """The share of its cold speed that a chip keeps after so many seconds of load.

    Raises ValueError for times that do not increase from 0, shares that are none, and a source without a class.
    """

    points: tuple[tuple[float, float], ...]
    """(seconds of load, share of the cold speed); the last one is what the chip sustains."""
    source: str

    def __post_init__(self) -> None:
        evidence_class(self.source)
        if len(self.points) < 2 or self.points[0] != (0, 1):
            raise ValueError(
                f"sustained: points={list(map(list, self.points))} must begin with [0, 1], the cold chip, and have at "
                "least one more."
            )
        for (before_s, _), (after_s, share) in pairwise(self.points):
            if not (before_s < after_s and 0 < share <= 1):
                raise ValueError(
                    f"sustained: the point [{after_s:g}, {share:g}] must be later than {before_s:g} s and have a share "
                    "of the cold speed, above 0 and at most 1."
                )

    @property
    def share(self) -> float:
        """The share at the curve's end."""
        return self.points[-1][1]

    @property
    def described(self) -> str:
        return f"{self.share:.0%} of the cold speed after {self.points[-1][0]:g} s of load ({self.source})"


def slowed(latency: LatencyT, share: float) -> LatencyT:
    """The latency of a chip that keeps `share` of its speed: each of its seconds takes 1 / `share`."""
    seconds = {each.name: getattr(latency, each.name) / share for each in fields(latency) if each.name.endswith("_s")}
    return replace(latency, **seconds, source=f"{latency.source}, hot: {share:.0%} of the cold speed")
