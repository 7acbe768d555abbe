"""An ASGI application on a socket, in the event loop of whoever starts it."""

import asyncio
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from serving.frontend.openai.protocol import Protocol

FLUSH_S = 2
"""How long clients have to take what is left for them when a server stops."""


class Http:
    """At `port`, with at most `connections`. Raises ValueError, with `what` before it, for an address in use."""

    def __init__(self, app: ASGIApp, what: str, host: str, port: int, connections: int) -> None:
        self._socket = _bound(what, host, port, connections)
        self.port: int = self._socket.getsockname()[1]
        self._server = _Quiet(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="critical",
                access_log=False,
                lifespan="off",
                ws="none",
                http=Protocol,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=connections,
                timeout_graceful_shutdown=FLUSH_S,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when connections are accepted."""
        self._task = asyncio.create_task(self._server.serve([self._socket]))
        started = asyncio.create_task(self._server.up.wait())
        await asyncio.wait({self._task, started}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            started.cancel()
            self._task.result()

    async def stop(self) -> None:
        """Lets clients take what is left for them, for a moment."""
        self._server.should_exit = True
        if self._task:
            await self._task


class _Quiet(uvicorn.Server):
    """Leaves signals to whoever owns the process, and says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


def _bound(what: str, host: str, port: int, backlog: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ValueError(
            f"{what}: cannot listen on {host} port {port} ({why}); choose another {what}.port (0: any free one) or "
            f"{what}.host"
        ) from error
