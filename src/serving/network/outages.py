"""Outage schedules of links and nodes, and their effect on one direction of a link."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from math import isfinite
from typing import Protocol

from serving.core.keyed_random import uniform
from serving.network.rate import TransmitRate

OutageInterval = tuple[float, float]
"""(down, up) in seconds of the run."""


class OutageSchedule(Protocol):
    """The same stream always gives the same intervals."""

    @property
    def max_duration_s(self) -> float:
        """Longest interval; 0 if there is none."""
        ...

    @property
    def described(self) -> str: ...

    def outage_intervals(self, stream: int) -> Iterator[OutageInterval]:
        """Yields intervals in order, without overlap, possibly endless.

        Args:
            stream: of the device or node, from `serving.core.keyed_random.key`.
        """
        ...


@dataclass(frozen=True)
class ListedOutages:
    """The same listed intervals for every device."""

    intervals: tuple[OutageInterval, ...]

    def __post_init__(self) -> None:
        for down_s, up_s in self.intervals:
            if not (isfinite(up_s) and 0 <= down_s < up_s):
                raise ValueError(
                    f"outages: [{down_s:g}, {up_s:g}] must be seconds of the run, 0 or more, down before up."
                )
        for (_, up_s), (down_s, _) in pairwise(self.intervals):
            if down_s <= up_s:
                raise ValueError(
                    f"outages: one begins at {down_s:g} s, but the previous one ends at {up_s:g} s; "
                    "list them in order, without overlap."
                )

    @property
    def max_duration_s(self) -> float:
        return max((up_s - down_s for down_s, up_s in self.intervals), default=0.0)

    @property
    def described(self) -> str:
        return f"down {len(self.intervals)} times, {sum(up_s - down_s for down_s, up_s in self.intervals):g} s in all"

    def outage_intervals(self, stream: int) -> Iterator[OutageInterval]:  # noqa: ARG002 - the protocol's argument
        return iter(self.intervals)


@dataclass(frozen=True, kw_only=True)
class PeriodicOutages:
    """Down for `duration_s` every `period_s` seconds, without end."""

    period_s: float
    duration_s: float
    first_start_s: float | None = None
    """Start of the first outage; None: drawn for each device within its first `period_s`."""
    jitter_s: float = 0.0
    """Each outage starts later by a uniform draw up to this."""

    def __post_init__(self) -> None:
        if not (isfinite(self.period_s) and self.duration_s > 0 and self.jitter_s >= 0):
            raise ValueError(
                f"outages: period_s={self.period_s:g}, duration_s={self.duration_s:g}, jitter_s={self.jitter_s:g} "
                "must be finite, the first two above 0."
            )
        if not self.duration_s + self.jitter_s < self.period_s:
            raise ValueError(
                f"outages: duration_s={self.duration_s:g} and jitter_s={self.jitter_s:g} must leave some of "
                f"period_s={self.period_s:g} seconds in which the link is up."
            )
        if self.first_start_s is not None and not (self.first_start_s >= 0 and isfinite(self.first_start_s)):
            raise ValueError(f"outages: first_start_s={self.first_start_s:g} must be 0 or more seconds.")

    @property
    def max_duration_s(self) -> float:
        return self.duration_s

    @property
    def described(self) -> str:
        return f"down {self.duration_s:g} s every {self.period_s:g} s"

    def outage_intervals(self, stream: int) -> Iterator[OutageInterval]:
        first_s = (
            uniform(stream, 0, "first outage") * self.period_s if self.first_start_s is None else self.first_start_s
        )
        for number in count():
            down_s = first_s + number * self.period_s + uniform(stream, number, "outage") * self.jitter_s
            yield down_s, down_s + self.duration_s


_MAX_OUTAGES = 100_000
_ROUNDING_S = 1e-9


def is_disconnection(outage: OutageInterval, detect_s: float) -> bool:
    """True if the outage is longer than `detect_s`, so that both ends notice it."""
    return outage[1] - outage[0] > detect_s + _ROUNDING_S


class OutageCursor:
    """Applies outages to a link; call with times that never decrease."""

    def __init__(self, outages: Iterator[OutageInterval], detect_s: float) -> None:
        self._outages, self._detect_s = outages, detect_s
        self._pending: deque[OutageInterval] = deque()

    def departure_s(self, rate: TransmitRate, nbytes: float, start_s: float) -> float:
        """When the last of `nbytes` has left, if no bits leave during outages.

        Raises ValueError if the outages cover all times at which the trace carries anything.
        """
        for number, (down_s, up_s) in enumerate(self._unfinished(start_s)):
            end_s = rate.departure_s(nbytes, start_s)
            if end_s <= down_s:
                return end_s
            if number > _MAX_OUTAGES:
                raise ValueError(
                    "network: the outages cover all times at which the trace carries anything; change one of them."
                )
            nbytes -= rate.nbytes_between(start_s, down_s) if down_s > start_s else 0.0
            start_s = max(start_s, up_s)
        return rate.departure_s(nbytes, start_s)

    def reconnected_s(self, now_s: float, arrival_s: float) -> float | None:
        """When the link is back, if a message of `now_s` has not arrived when both ends notice an outage; else None."""
        for outage in self._unfinished(now_s):
            if outage[0] + self._detect_s >= arrival_s:
                return None
            if is_disconnection(outage, self._detect_s):
                return outage[1]
        return None

    def _unfinished(self, now: float) -> Iterator[OutageInterval]:
        """Yields the outages that have not ended at `now`."""
        while self._pending and self._pending[0][1] <= now:
            self._pending.popleft()
        yield from tuple(self._pending)
        for outage in self._outages:
            if outage[1] > now:
                self._pending.append(outage)
                yield outage
