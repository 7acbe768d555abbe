import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from serving.frontend.openai.admission import RunningRequests, cancel_on_disconnect
from serving.frontend.openai.errors import ApiError


class Source:
    """Numbers, as fast as they are taken; knows whether it was closed."""

    def __init__(self, n: int) -> None:
        self.n, self.over = n, asyncio.Event()

    async def numbers(self) -> AsyncGenerator[int, None]:
        try:
            for i in range(self.n):
                await asyncio.sleep(0)
                yield i
        finally:
            self.over.set()


def test_a_source_does_not_wait_for_its_reader() -> None:
    async def work() -> list[int]:
        source = Source(5)
        async with aclosing(RunningRequests().stream(source.numbers())) as items:
            first = await anext(items)
            await source.over.wait()
            return [first, *[item async for item in items]]

    assert asyncio.run(work()) == [0, 1, 2, 3, 4]


def test_a_reader_that_leaves_closes_its_source() -> None:
    async def work() -> tuple[bool, int]:
        running, source = RunningRequests(), Source(1_000_000)
        async with aclosing(running.stream(source.numbers())) as items:
            await anext(items)
        await asyncio.sleep(0)
        return source.over.is_set(), len(running)

    assert asyncio.run(work()) == (True, 0)


def test_stopping_raises_an_error_in_the_reader_after_pending_items() -> None:
    async def work() -> None:
        running, source = RunningRequests(), Source(1_000_000)
        async with aclosing(running.stream(source.numbers())) as items:
            assert await anext(items) == 0
            await running.stop(0)
            async for _ in items:
                pass

    with pytest.raises(ApiError, match="shutting down"):
        asyncio.run(work())


def test_an_error_of_the_source_reaches_the_reader() -> None:
    async def broken() -> AsyncGenerator[int, None]:
        yield 1
        raise KeyError("broken")

    async def work() -> list[int]:
        return [item async for item in RunningRequests().stream(broken())]

    with pytest.raises(KeyError, match="broken"):
        asyncio.run(work())


def test_work_is_cancelled_when_its_client_disconnects() -> None:
    async def work() -> bool:
        begun, cancelled = asyncio.Event(), False

        async def endless() -> None:
            nonlocal cancelled
            try:
                begun.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled = True
                raise

        async def receive() -> dict[str, str]:
            await begun.wait()
            return {"type": "http.disconnect"}

        await cancel_on_disconnect(receive, endless())
        return cancelled

    assert asyncio.run(work())
