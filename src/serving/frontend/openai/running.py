"""What is being answered, each in a task of its own: a client that reads slowly holds up nobody but itself."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

from serving.frontend.openai.errors import ApiError

T = TypeVar("T")


class Running:
    """The answers under way; once `stopping`, the endpoint takes no new ones."""

    def __init__(self) -> None:
        self.stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def follow(self, source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
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
