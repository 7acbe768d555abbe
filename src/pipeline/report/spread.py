"""How values spread: mean, median, p90, p99."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles interpolate linearly between the two nearest values."""

    mean: float
    median: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread | None":
        """Of the values that are there; None if there are none."""
        ranked = sorted(value for value in values if value is not None)
        if not ranked:
            return None
        return cls(sum(ranked) / len(ranked), *(percentile(ranked, share) for share in (0.5, 0.9, 0.99)))


def percentile(ranked: list[float], share: float) -> float:
    """The value below which a `share` of the ascending `ranked` lies."""
    place = share * (len(ranked) - 1)
    low = int(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)
