"""A TCP proxy that can cut, stall, delay and truncate; for the tests and for benchmarks/soak."""

import asyncio
from contextlib import suppress

_CHUNK = 65536


class Proxy:
    """Carries connections to `target` (host:port); `address` is where to dial instead."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._open, self._flows = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._left: int | None = None
        self.address, self.delay_s, self.nbytes, self.connections = "", 0.0, 0, 0

    async def start(self) -> "Proxy":
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def stop(self) -> None:
        self.mend()
        if self._server:
            self._server.close()
        self._abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Breaks all connections and refuses new ones until `mend`."""
        self._open.clear()
        self._abort()

    def stall(self) -> None:
        """Keeps connections, but forwards no byte until `mend`."""
        self._flows.clear()

    def truncate(self, nbytes: int) -> None:
        """Forwards `nbytes` more, then breaks all connections, inside a frame."""
        self._left = nbytes

    def slow(self, delay_s: float) -> None:
        """Delays each chunk of data by `delay_s`."""
        self.delay_s = delay_s

    def mend(self) -> None:
        self._left, self.delay_s = None, 0.0
        self._open.set()
        self._flows.set()

    def _abort(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open.is_set():
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        self._writers |= {writer, back}
        for each in (self._pump(reader, back), self._pump(there, writer)):
            task = asyncio.ensure_future(each)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._flows.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self._left is not None:
                    self._left, data = self._left - len(data), data[: max(0, self._left)]
                writer.write(data)
                await writer.drain()
                self.nbytes += len(data)
                if self._left is not None and self._left <= 0:
                    self._left = None
                    self._abort()
        self._writers.discard(writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
