"""A device's outages, as one direction of its link meets them."""

from collections import deque
from collections.abc import Iterator

from serving.network.outages import Window
from serving.network.rate import Rate

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
