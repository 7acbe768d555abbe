"""What time it is for a live driver: this machine's, or what a script says."""

import asyncio
import time
from typing import Protocol

from serving.messages import INF

_TIMER_RESOLUTION_S = 1.5e-3
"""An event loop's timers count in milliseconds: the last of a wait is spent looking at the clock."""


class Clock(Protocol):
    @property
    def scripted(self) -> bool:
        """Does time stand still while anything is under way, and then jump to what is due next?"""
        ...

    def now(self) -> float:
        """Seconds since the run began."""
        ...

    def advance_to(self, at: float) -> bool:
        """Has `at` come?"""
        ...

    async def wait_until(self, at: float, wakeup: asyncio.Event) -> None:
        """Returns when `at` has come, or something stirs."""
        ...


class WallClock:
    """This machine's monotonic clock; processes of one machine that share an `origin_s` share the clock."""

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
    """Virtual time for a live driver: the same log as the simulator's, threads and transports included."""

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
