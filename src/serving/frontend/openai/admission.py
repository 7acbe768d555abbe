"""Admission and cancellation: the queue before the device, running requests, clients that disconnect."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from starlette.types import Receive

from serving.frontend.openai.errors import ApiError


class AdmissionQueue:
    """First come, first served: one request runs, and at most `max_waiting` wait."""

    def __init__(self, max_waiting: int, retry_after_s: float) -> None:
        self.max_waiting, self.retry_after_s = max_waiting, retry_after_s
        self.waiting = 0
        self._lock = asyncio.Lock()

    @property
    def busy(self) -> bool:
        return self._lock.locked() or self.waiting > 0

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Waits, then holds the device. Raises ApiError (429) if the queue is full."""
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
    """The answers under way, each in a task of its own, so that a slow client delays no other.

    Once `stopping`, the endpoint refuses new requests.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def stream(self, source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Yields the source's items, which a task produces ahead of the reader; closing this closes the source."""
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
        """Lets running answers finish for `grace_s` seconds, then cancels them with an error to their clients."""
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
        items.put_nowait(ApiError.stopping())  # not read if the reader itself closed the stream
        raise
    except Exception as error:
        items.put_nowait(error)


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` to its end, or cancels it when the client disconnects. The request's body must have been read."""
    task, disconnect = asyncio.create_task(work), asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        disconnect.cancel()
        await asyncio.wait({task, disconnect})
    if not task.cancelled():
        task.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
