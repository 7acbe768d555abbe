"""The line before the device, which serves one request at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from serving.frontend.openai.errors import ApiError


class Line:
    """First come, first served; at most `bound` wait."""

    def __init__(self, bound: int, retry_after_s: float) -> None:
        self.bound, self.retry_after_s = bound, retry_after_s
        self.waiting = 0
        self._chair = asyncio.Lock()

    @property
    def busy(self) -> bool:
        return self._chair.locked() or self.waiting > 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for one's turn and holds it. Raises ApiError (429) when the line is full."""
        if self.busy and self.waiting >= self.bound:
            raise ApiError.queue_full(self.waiting, self.retry_after_s)
        self.waiting += 1
        try:
            await self._chair.acquire()
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self._chair.release()
