"""Work for a client only while the client is there."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Message, Receive, Send


class StalledError(Exception):
    """A client does not read what it asked for."""


async def while_present(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` to its end, or cancels it when the client hangs up; the request's body must have been read."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.wait({task, gone})
    if not task.cancelled():
        task.result()


def patient(send: Send, stall_s: float) -> Send:
    """`send` that raises StalledError when the client has read nothing for so long that buffers are full."""

    async def patiently(message: Message) -> None:
        try:
            async with asyncio.timeout(stall_s):
                await send(message)
        except TimeoutError:
            raise StalledError from None

    return patiently


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
