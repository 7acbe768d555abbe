"""When a device's link is down.

A device's outages, as one direction of its link meets them.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from math import isfinite
from typing import Protocol

from serving.core.keyed_random import luck
from serving.network.rate import Rate

Window = tuple[float, float]
"""(goes down, comes back) in seconds of the run."""


class Outages(Protocol):
    """A schedule; the same stream always has the same windows."""

    @property
    def longest_s(self) -> float:
        """No window is longer; 0 when there is none."""
        ...

    @property
    def described(self) -> str: ...

    def windows(self, stream: int) -> Iterator[Window]:
        """Of the device with this `stream` (from `serving.core.keyed_random.key`): in order, not overlapping, perhaps
        endless.
        """
        ...


@dataclass(frozen=True)
class Listed:
    """The same windows for every device, written out."""

    listed: tuple[Window, ...]

    def __post_init__(self) -> None:
        for down_s, up_s in self.listed:
            if not (isfinite(up_s) and 0 <= down_s < up_s):
                raise ValueError(
                    f"outages: [{down_s:g}, {up_s:g}] must be seconds of the run, 0 or more, "
                    "the moment of going down before that of coming back."
                )
        for (_, up_s), (down_s, _) in pairwise(self.listed):
            if down_s <= up_s:
                raise ValueError(
                    f"outages: one begins at {down_s:g} s, and the one before ends at {up_s:g} s; "
                    "list them in order, without overlap."
                )

    @property
    def longest_s(self) -> float:
        return max((up_s - down_s for down_s, up_s in self.listed), default=0.0)

    @property
    def described(self) -> str:
        return f"down {len(self.listed)} times, {sum(up_s - down_s for down_s, up_s in self.listed):g} s in all"

    def windows(self, stream: int) -> Iterator[Window]:  # noqa: ARG002 - the protocol's argument
        return iter(self.listed)


@dataclass(frozen=True, kw_only=True)
class Periodic:
    """Down for `for_s` every `every_s` seconds, without end."""

    every_s: float
    for_s: float
    first_s: float | None = None
    """When it first goes down; None: each device somewhere in its first `every_s`, by its luck."""
    jitter_s: float = 0.0
    """Each outage begins up to this much later, evenly, by the device's luck."""

    def __post_init__(self) -> None:
        if not (isfinite(self.every_s) and self.for_s > 0 and self.jitter_s >= 0):
            raise ValueError(
                f"outages: every_s={self.every_s:g}, for_s={self.for_s:g}, jitter_s={self.jitter_s:g} must be "
                "finite, the first two more than 0."
            )
        if not self.for_s + self.jitter_s < self.every_s:
            raise ValueError(
                f"outages: for_s={self.for_s:g} and jitter_s={self.jitter_s:g} must leave some of "
                f"every_s={self.every_s:g} seconds in which the link is up."
            )
        if self.first_s is not None and not (self.first_s >= 0 and isfinite(self.first_s)):
            raise ValueError(f"outages: first_s={self.first_s:g} must be 0 or more seconds.")

    @property
    def longest_s(self) -> float:
        return self.for_s

    @property
    def described(self) -> str:
        return f"down {self.for_s:g} s every {self.every_s:g} s"

    def windows(self, stream: int) -> Iterator[Window]:
        first_s = luck(stream, 0, "first outage") * self.every_s if self.first_s is None else self.first_s
        for number in count():
            down_s = first_s + number * self.every_s + luck(stream, number, "outage") * self.jitter_s
            yield down_s, down_s + self.for_s


_MOST_WINDOWS = 100_000
_ROUNDING_S = 1e-9


def is_break(window: Window, detect_s: float) -> bool:
    """Is it down for longer than both ends take to notice?"""
    return window[1] - window[0] > detect_s + _ROUNDING_S


class Downtime:
    """Outages in order of time; asked with moments that never go back."""

    def __init__(self, windows: Iterator[Window], detect_s: float) -> None:
        self._windows, self._detect_s = windows, detect_s
        self._ahead: deque[Window] = deque()

    def sent(self, rate: "Rate", nbytes: float, start: float) -> float:
        """When the last of `nbytes` has left, if none leave while the link is down.

        Raises ValueError when the outages leave the link no time in which it carries anything.
        """
        for met, (down_s, up_s) in enumerate(self._after(start)):
            end = rate.sent(nbytes, start)
            if end <= down_s:
                return end
            if met > _MOST_WINDOWS:
                raise ValueError("network: the outages coincide with whatever the trace carries; change one of them.")
            nbytes -= rate.carried(start, down_s) if down_s > start else 0.0
            start = max(start, up_s)
        return rate.sent(nbytes, start)

    def mended(self, now: float, arrives: float) -> float | None:
        """When the link is back, if a message on its way from `now` is not there yet when both ends notice a break."""
        for window in self._after(now):
            if window[0] + self._detect_s >= arrives:
                return None
            if is_break(window, self._detect_s):
                return window[1]
        return None

    def _after(self, now: float) -> Iterator[Window]:
        """The windows that are not over at `now`."""
        while self._ahead and self._ahead[0][1] <= now:
            self._ahead.popleft()
        yield from tuple(self._ahead)
        for window in self._windows:
            if window[1] > now:
                self._ahead.append(window)
                yield window
