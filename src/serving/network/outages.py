"""When a device's link is down.

A device's outages, as one direction of its link meets them.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from math import isfinite
from typing import Protocol

from serving.core.keyed_random import uniform
from serving.network.rate import TransmitRate

OutageInterval = tuple[float, float]
"""(goes down, comes back) in seconds of the run."""


class OutageSchedule(Protocol):
    """A schedule; the same stream always has the same windows."""

    @property
    def max_duration_s(self) -> float:
        """No window is longer; 0 when there is none."""
        ...

    @property
    def described(self) -> str: ...

    def outage_intervals(self, stream: int) -> Iterator[OutageInterval]:
        """Of the device with this `stream` (from `serving.core.keyed_random.key`): in order, not overlapping, perhaps
        endless.
        """
        ...


@dataclass(frozen=True)
class ListedOutages:
    """The same windows for every device, written out."""

    intervals: tuple[OutageInterval, ...]

    def __post_init__(self) -> None:
        for down_s, up_s in self.intervals:
            if not (isfinite(up_s) and 0 <= down_s < up_s):
                raise ValueError(
                    f"outages: [{down_s:g}, {up_s:g}] must be seconds of the run, 0 or more, "
                    "the moment of going down before that of coming back."
                )
        for (_, up_s), (down_s, _) in pairwise(self.intervals):
            if down_s <= up_s:
                raise ValueError(
                    f"outages: one begins at {down_s:g} s, and the one before ends at {up_s:g} s; "
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
    """When it first goes down; None: each device somewhere in its first `period_s`, by its luck."""
    jitter_s: float = 0.0
    """Each outage begins up to this much later, evenly, by the device's luck."""

    def __post_init__(self) -> None:
        if not (isfinite(self.period_s) and self.duration_s > 0 and self.jitter_s >= 0):
            raise ValueError(
                f"outages: period_s={self.period_s:g}, duration_s={self.duration_s:g}, jitter_s={self.jitter_s:g} must be "
                "finite, the first two more than 0."
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
    """Is it down for longer than both ends take to notice?"""
    return outage[1] - outage[0] > detect_s + _ROUNDING_S


class OutageCursor:
    """Outages in order of time; asked with moments that never go back."""

    def __init__(self, outages: Iterator[OutageInterval], detect_s: float) -> None:
        self._outages, self._detect_s = outages, detect_s
        self._pending: deque[OutageInterval] = deque()

    def departure_s(self, rate: "TransmitRate", nbytes: float, start_s: float) -> float:
        """When the last of `nbytes` has left, if none leave while the link is down.

        Raises ValueError when the outages leave the link no time in which it carries anything.
        """
        for met, (down_s, up_s) in enumerate(self._unfinished(start_s)):
            end = rate.departure_s(nbytes, start_s)
            if end <= down_s:
                return end
            if met > _MAX_OUTAGES:
                raise ValueError("network: the outages coincide with whatever the trace carries; change one of them.")
            nbytes -= rate.nbytes_between(start_s, down_s) if down_s > start_s else 0.0
            start_s = max(start_s, up_s)
        return rate.departure_s(nbytes, start_s)

    def reconnected_s(self, now_s: float, arrival_s: float) -> float | None:
        """When the link is back, if a message on its way from `now_s` is not there yet when both ends notice a break."""
        for window in self._unfinished(now_s):
            if window[0] + self._detect_s >= arrival_s:
                return None
            if is_disconnection(window, self._detect_s):
                return window[1]
        return None

    def _unfinished(self, now: float) -> Iterator[OutageInterval]:
        """The windows that are not over at `now`."""
        while self._pending and self._pending[0][1] <= now:
            self._pending.popleft()
        yield from tuple(self._pending)
        for window in self._outages:
            if window[1] > now:
                self._pending.append(window)
                yield window
