"""A stream in use, the same from either end."""

import asyncio
from collections.abc import Awaitable, Callable

import grpc.aio

from serving.transport.encode import frame
from serving.transport.stream import Outbox
from serving.transport.tandem_pb2 import Frame, Goodbye

METHOD = "/tandem.v1.Link/Talk"
ADMITTED = ("tandem", "v1")
"""Metadata with which a server says that the token is right, before anything is written."""


async def converse(
    read: Callable[[], Awaitable[object]],
    write: Callable[[bytes], Awaitable[None]],
    outbox: Outbox,
    hear: Callable[[bytes], Awaitable[None]],
    written: Callable[[], Awaitable[None]],
) -> None:
    """Hears and says until the other side ends or the outbox is closed and empty.

    Args:
        written: called when all is said; this side is over when it returns.

    Raises RefusedError from `hear` or from the outbox, and whatever gRPC raises when the connection breaks.
    """

    async def listen() -> None:
        while isinstance(data := await read(), bytes):
            await hear(data)

    async def say() -> None:
        while (data := await outbox.take()) is not None:
            await write(data)
        await written()

    tasks = [asyncio.ensure_future(each) for each in (listen(), say(), outbox.fault())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in reversed([each for each in tasks if each in done]):
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def status(code: str) -> grpc.StatusCode:
    return grpc.StatusCode[code]


def goodbye(reason: str) -> bytes:
    return frame(Frame(goodbye=Goodbye(reason=reason)))
