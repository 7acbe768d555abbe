"""The line before the device, which serves one request at a time.

What is being answered, each in a task of its own: a client that reads slowly holds up nobody but itself.

Work for a client only while the client is there.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from starlette.types import Message, Receive, Send

from serving.frontend.openai.errors import ApiError


class AdmissionQueue:
    """First come, first served; at most `max_waiting` wait."""

    def __init__(self, max_waiting: int, retry_after_s: float) -> None:
        self.max_waiting, self.retry_after_s = max_waiting, retry_after_s
        self.waiting = 0
        self._lock = asyncio.Lock()

    @property
    def busy(self) -> bool:
        return self._lock.locked() or self.waiting > 0

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Waits for one's turn and holds it. Raises ApiError (429) when the line is full."""
        if self.busy and self.waiting >= self.max_waiting:
            raise ApiError.queue_full(self.waiting, self.retry_after_s)
        self.waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self._lock.release()


T = TypeVar("T")


class RunningRequests:
    """The answers under way; once `stopping`, the endpoint takes no new ones."""

    def __init__(self) -> None:
        self.stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def stream(self, source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """The source's items, made ahead of their reader (as many as an answer has, at most) and closed with it."""
        items: asyncio.Queue[T | Exception | None] = asyncio.Queue()
        task = asyncio.create_task(_pump(source, items))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while (item := await items.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def stop(self, grace_s: float) -> None:
        """Lets what runs come to its end for `grace_s` seconds, then breaks it off with an error to its client."""
        self.stopping = True
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=grace_s)
            for task in late:
                task.cancel()


async def _pump(source: AsyncGenerator[T, None], items: "asyncio.Queue[T | Exception | None]") -> None:
    try:
        async with aclosing(source):
            async for item in source:
                items.put_nowait(item)
        items.put_nowait(None)
    except asyncio.CancelledError:
        items.put_nowait(ApiError.stopping())  # read only if it was not the reader who left
        raise
    except Exception as error:
        items.put_nowait(error)


class ClientStalledError(Exception):
    """A client does not read what it asked for."""


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` to its end, or cancels it when the client hangs up; the request's body must have been read."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.wait({task, gone})
    if not task.cancelled():
        task.result()


def with_send_timeout(send: Send, timeout_s: float) -> Send:
    """`send` that raises StalledError when the client has read nothing for so long that buffers are full."""

    async def patiently(message: Message) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await send(message)
        except TimeoutError:
            raise ClientStalledError from None

    return patiently


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
