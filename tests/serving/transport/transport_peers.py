"""Hosts for tests: a sink that records, a runner that finds tasks left behind, and a client that sends raw bytes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc.aio

from serving.messages import Hop, Message, Release, Request, SequenceSlice, Span
from serving.transport.client import TransportClient
from serving.transport.frame import Hello
from serving.transport.limits import Limits
from serving.transport.server import TransportServer
from serving.transport.stream import METHOD

FAST = Limits(backoff_s=0.01, backoff_max_s=0.05)
ROUTE = (Hop("cloud", Span(0, 8, True, True)),)


class FakeSink:
    """Records messages and peers; while `open` is not set it takes no message."""

    def __init__(self) -> None:
        self.begun = 0
        self.open = asyncio.Event()
        self.open.set()
        self._received: asyncio.Queue[tuple[str, str, Message]] = asyncio.Queue()
        self._news: asyncio.Queue[tuple[str, tuple[str, ...]]] = asyncio.Queue()

    async def receive(self, sender: str, to: str, message: Message) -> None:
        self.begun += 1
        await self.open.wait()
        self._received.put_nowait((sender, to, message))

    def peers_lost(self, nodes: tuple[str, ...]) -> None:
        self._news.put_nowait(("lost", nodes))

    def peers_restored(self, nodes: tuple[str, ...]) -> None:
        self._news.put_nowait(("restored", nodes))

    async def received(self) -> tuple[str, str, Message]:
        return await soon(self._received.get())

    async def news(self) -> tuple[str, tuple[str, ...]]:
        return await soon(self._news.get())

    @property
    def quiet(self) -> bool:
        return self._received.empty() and self._news.empty()


async def soon(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(10):
        return await awaitable


async def until(true: Callable[[], bool]) -> None:
    """Runs the event loop until `true()`."""
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0)


RUNNER = asyncio.Runner()
"""One loop for all tests: gRPC's poller may lose events of a new loop while events of a closed one arrive."""


def left() -> list[str]:
    """Tasks still running, except one of gRPC's own, which waits forever after a write into a call that has just
    ended (grpc #36066).
    """
    tasks = [str(task) for task in asyncio.all_tasks() - {asyncio.current_task()}]
    return [task for task in tasks if "_AioCall._handle_status_once_received" not in task]


def run_scenario(scenario: Callable[[], Awaitable[None]]) -> None:
    """Runs a scenario and fails if it leaves tasks behind."""

    async def checked() -> None:
        async with asyncio.timeout(30):
            await scenario()
        with suppress(TimeoutError):
            await until(lambda: not left())
        assert not left()

    RUNNER.run(checked())


@asynccontextmanager
async def listening(sink: FakeSink, *nodes: str, **how: Any) -> AsyncIterator[tuple[TransportServer, str]]:
    how.setdefault("limits", FAST)
    server = TransportServer(nodes or ("cloud-0",), sink, **how)
    address = await server.start()
    try:
        yield server, address
    finally:
        await server.stop(0.2)


@asynccontextmanager
async def dialling(sink: FakeSink, address: str, *nodes: str, **how: Any) -> AsyncIterator[TransportClient]:
    how.setdefault("limits", FAST)
    client = TransportClient(nodes or ("device-0",), sink, how.pop("tensor_store", None), address, **how)
    await client.start()
    try:
        yield client
    finally:
        await client.stop(0.2)


@asynccontextmanager
async def raw(address: str, *frames: bytes) -> AsyncIterator[Any]:
    """A stream that sends raw frames."""
    async with grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call: Any = channel.stream_stream(METHOD)()
        for frame in frames:
            await call.write(frame)
        yield call
        call.cancel()


@asynccontextmanager
async def cable(address: str) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """A proxy that drops every byte once it is cut, but stays open."""
    host, _, port = address.rpartition(":")
    cut, tasks, writers = asyncio.Event(), set[asyncio.Task[None]](), []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if not cut.is_set():
                    writer.write(data)
                    await writer.drain()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        writers.extend((writer, back))
        tasks.update(asyncio.ensure_future(each) for each in (pump(reader, back), pump(there, writer)))

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", cut
    finally:
        server.close()
        for writer in writers:
            writer.close()
            with suppress(ConnectionError):
                await soon(writer.wait_closed())
        await soon(asyncio.gather(*tasks))


async def ending(call: Any) -> tuple[str, str]:
    """The status with which a stream ends, after all its frames."""
    with suppress(grpc.aio.AioRpcError):
        while await soon(call.read()) is not grpc.aio.EOF:
            pass
    return (await soon(call.code())).name, await soon(call.details())


def hello(*nodes: str) -> bytes:
    return Hello(nodes or ("evil-0",), boot_id="b").encoded


def request(session: str = "s", device: str = "device-0", cloud: str = "cloud-0", n: int = 3, **how: Any) -> Request:
    seq = SequenceSlice(session, 0, n, tuple(range(n)), 1, "greedy", **how)
    return Request(0, seq, ROUTE, 0, (cloud,), device)


async def serves(sink: FakeSink, address: str, name: str = "good-0") -> None:
    """Checks that a well-behaved device is still served."""
    there = FakeSink()
    async with dialling(there, address, name) as client:
        question = request(f"of {name}".replace(" ", "-"), name)
        client.send(name, "cloud-0", question)
        while (await sink.received())[2] != question:
            pass
        client.send(name, "cloud-0", Release(question.slice.session))
        assert isinstance((await sink.received())[2], Release)
