"""An HTTP/1.1 server (uvicorn) for an ASGI application, in the running event loop."""

import asyncio
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

FIRST_REQUEST_TIMEOUT_S = 10.0


class HttpProtocol(H11Protocol):
    """Sends tokens without delay, and closes connections that send no request.

    A connection without a complete request header after `first_request_timeout_s` would use up the connection limit.
    """

    first_request_timeout_s = FIRST_REQUEST_TIMEOUT_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio sets this only for sockets with an explicit protocol number. Without it, Nagle's algorithm delays a
        # token until the client acknowledges the previous one, up to 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._first_request_timer = self.loop.call_later(self.first_request_timeout_s, self._close_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        self._first_request_timer.cancel()
        super().connection_lost(exc)

    def _close_if_silent(self) -> None:
        if self.cycle is None:
            self.transport.close()


FLUSH_TIMEOUT_S = 2
"""Time for clients to read the rest of their responses when a server stops."""


class HttpServer:
    """Listens at `port`. `section` is the configuration section that the ValueError for an address in use names."""

    def __init__(self, app: ASGIApp, section: str, host: str, port: int, max_connections: int) -> None:
        self._socket = _bind_socket(section, host, port, max_connections)
        self.port: int = self._socket.getsockname()[1]
        self._server = _EmbeddedServer(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="critical",
                access_log=False,
                lifespan="off",
                ws="none",
                http=HttpProtocol,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=max_connections,
                timeout_graceful_shutdown=FLUSH_TIMEOUT_S,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when connections are accepted."""
        self._task = asyncio.create_task(self._server.serve([self._socket]))
        started = asyncio.create_task(self._server.started_event.wait())
        await asyncio.wait({self._task, started}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            started.cancel()
            self._task.result()

    async def stop(self) -> None:
        """Gives clients FLUSH_TIMEOUT_S to read the rest of their responses."""
        self._server.should_exit = True
        if self._task:
            await self._task


class _EmbeddedServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the process and sets `started_event` when it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.started_event = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.started_event.set()


def _bind_socket(section: str, host: str, port: int, backlog: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ValueError(
            f"{section}: cannot listen on {host} port {port} ({why}); choose another {section}.port (0: any free one) "
            f"or {section}.host"
        ) from error
