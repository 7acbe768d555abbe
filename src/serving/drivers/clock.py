"""The clock of a real-time driver: this machine's, or a scripted one for tests."""

import asyncio
import time
from typing import Protocol

from serving.messages import INF

_TIMER_RESOLUTION_S = 1.5e-3
"""Event loop timers have millisecond resolution, so the last part of a wait polls the clock."""


class Clock(Protocol):
    @property
    def scripted(self) -> bool:
        """True if time stands still while work or a message is in flight, and then jumps to the next event."""
        ...

    def now(self) -> float:
        """Seconds since the run began."""
        ...

    def advance_to(self, at: float) -> bool:
        """True if time `at` has come."""
        ...

    async def wait_until(self, at: float, wakeup: asyncio.Event) -> None:
        """Returns at time `at`, or earlier if `wakeup` is set."""
        ...


class WallClock:
    """This machine's monotonic clock. Processes of one machine with the same `origin_s` share it."""

    scripted = False

    def __init__(self, origin_s: float | None = None) -> None:
        self.origin_s = time.monotonic() if origin_s is None else origin_s

    def now(self) -> float:
        return time.monotonic() - self.origin_s

    def advance_to(self, at: float) -> bool:
        return at <= self.now()

    async def wait_until(self, at: float, wakeup: asyncio.Event) -> None:
        left_s = at - self.now()
        if left_s < _TIMER_RESOLUTION_S:
            await asyncio.sleep(0)
            return
        wakeup.clear()
        timer = asyncio.get_running_loop().call_later(left_s - _TIMER_RESOLUTION_S, wakeup.set) if at < INF else None
        try:
            await wakeup.wait()
        finally:
            if timer:
                timer.cancel()


class ScriptedClock:
    """Virtual time for a real-time driver: with threads and transports, it yields the simulator's own log."""

    scripted = True

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def advance_to(self, at: float) -> bool:
        self._now = max(self._now, at)
        return True

    async def wait_until(self, at: float, wakeup: asyncio.Event) -> None:  # noqa: ARG002
        wakeup.clear()
        await wakeup.wait()
