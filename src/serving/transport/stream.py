"""Messages that wait for one host to take them; bounded, because a host may be slow or dead."""

import asyncio
from collections import deque

from serving.transport.errors import RefusedError
from serving.transport.limits import Limits


class Outbox:
    """First in, first out: one side puts without waiting, the stream takes."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: deque[bytes] = deque()
        self._nbytes = 0
        self._closed = False
        self._fault: RefusedError | None = None
        self._changed = asyncio.Event()
        self._broken = asyncio.Event()

    def put(self, data: bytes) -> None:
        """Never blocks: what is one too many breaks the stream, what comes after its end is dropped."""
        if self._closed or self._fault:
            return
        limits = self._limits
        if len(self._waiting) >= limits.outbox_messages or self._nbytes + len(data) > limits.outbox_nbytes:
            self.reset(
                RefusedError(
                    "RESOURCE_EXHAUSTED",
                    f"the other side is too slow: {len(self._waiting)} messages of {self._nbytes} bytes wait for it "
                    f"(limits.outbox_messages={limits.outbox_messages}, outbox_nbytes={limits.outbox_nbytes}).",
                )
            )
            return
        self._waiting.append(data)
        self._nbytes += len(data)
        self._changed.set()

    def close(self, last: bytes) -> None:
        """What waits is still sent, then `last`, then nothing."""
        if not self._closed:
            self._waiting.append(last)
            self._nbytes += len(last)
            self._closed = True
            self._changed.set()

    def reset(self, fault: RefusedError) -> None:
        """Breaks the stream: what waits is dropped."""
        self._waiting.clear()
        self._nbytes = 0
        self._fault = self._fault or fault
        self._broken.set()

    async def fault(self) -> None:
        """Waits for a reset, and raises its reason."""
        await self._broken.wait()
        if self._fault:
            raise self._fault

    async def take(self) -> bytes | None:
        """The next of what is put, in order; None when the outbox was closed and is empty."""
        while not self._waiting:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        data = self._waiting.popleft()
        self._nbytes -= len(data)
        return data
