"""The HTTP layer below the API: the server (uvicorn) in the running event loop, and the checks of key, Host header and
body that come before a request is served.
"""

import asyncio
import hmac
import os
import socket
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from hashlib import sha256

import uvicorn
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.options import HostOptions

# The server.

HEADER_TIMEOUT_S = 10.0
STALL_TIMEOUT_S = 30.0


class HttpProtocol(H11Protocol):
    """Sends tokens without delay, and closes connections that would use up the connection limit. It closes one after
    `header_timeout_s` without the whole header of a request that has begun, and one after `stall_timeout_s` in which
    the client took none of the data that waits.

    A new connection counts as a request begun, and so do bytes of a body that arrive after the response.
    """

    header_timeout_s = HEADER_TIMEOUT_S
    stall_timeout_s = STALL_TIMEOUT_S
    _header_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio sets this only for sockets with an explicit protocol number. Without it, Nagle's algorithm delays a
        # token until the client acknowledges the previous one, up to 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` tells of any byte that the kernel does not take
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_header_timer()
        self._cancel_stall_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle and not self.cycle.response_complete:
            self._cancel_header_timer()
        elif not self._header_timer:  # further bytes do not start it again
            self._start_header_timer()

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self.header_timeout_s, self.transport.close)

    def _cancel_header_timer(self) -> None:
        if self._header_timer:
            self._header_timer.cancel()
        self._header_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_stall_timer()

    def _start_stall_timer(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self.stall_timeout_s, self._end_if_stalled, waiting)

    def _end_if_stalled(self, waiting: int) -> None:
        if self.transport.get_write_buffer_size() < waiting:
            self._start_stall_timer()
        else:
            self.transport.abort()  # not `close`, which waits until the client has read everything

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_stall_timer()

    def _cancel_stall_timer(self) -> None:
        if self._stall_timer:
            self._stall_timer.cancel()


FLUSH_TIMEOUT_S = 2
"""Time for clients to read the rest of their responses when a server stops."""


class HttpServer:
    """Listens at `port`. `section` is the configuration section that the ValueError for an address in use names."""

    def __init__(
        self,
        app: ASGIApp,
        section: str,
        host: str,
        port: int,
        max_connections: int,
        stall_timeout_s: float = STALL_TIMEOUT_S,
    ) -> None:
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
                http=type("BoundedProtocol", (HttpProtocol,), {"stall_timeout_s": stall_timeout_s}),
                server_header=False,
                proxy_headers=False,
                limit_concurrency=max_connections + 1,  # uvicorn refuses from this number on, itself included
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

    def close(self) -> None:
        """Gives the port back, also if the server was never started."""
        self._socket.close()

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


# The checks.

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Orchestrators read these without a key; they reveal nothing about requests."""

CLIENT_SCOPE_KEY = "tandem.client"
"""Key of the ASGI scope: a digest of the API key that the request showed, "" if no key is required."""


class ApiKeyGuard:
    """Passes a request to `app` if no key is configured, it shows the right one, or its path is open. Answers others
    with 401 before reading their body.
    """

    def __init__(self, app: ASGIApp, key: str | None, open_paths: Collection[str] = OPEN_PATHS) -> None:
        self._app, self._key, self._open_paths = app, key.encode() if key else None, open_paths
        self._client_digest = sha256(self._key).hexdigest() if self._key else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "http"
            and scope["path"] not in self._open_paths
            and not self._is_authorized(Headers(scope=scope))
        ):
            refusal = ApiError(
                401,
                "the API key is missing or wrong; send it as `Authorization: Bearer <key>`",
                "invalid_api_key",
                None,
                {"www-authenticate": "Bearer", "connection": "close"},
            )
            await refusal.response()(scope, receive, send)
            return
        await self._app({**scope, CLIENT_SCOPE_KEY: self._client_digest}, receive, send)

    def _is_authorized(self, headers: Headers) -> bool:
        if self._key is None:
            return True
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(shown.strip(" \t").encode("latin-1"), self._key)


LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
DISCARDED_BODIES = 16
"""A body of so many times the limit is read before it is refused: a client that is still sending when the connection
closes sees a reset in place of the answer.
"""
QUIET_S = 0.5


class HostGuard:
    """On a loopback server, refuses requests (421) whose Host header is neither this machine nor the configured host.

    This stops DNS rebinding, where a foreign web page reaches a local server through its reader's browser. Servers on
    other addresses accept any Host header, since their names are not known here.
    """

    def __init__(self, app: ASGIApp, options: HostOptions) -> None:
        self._app, self._known_hosts = app, tuple(dict.fromkeys((options.url_host.lower(), *LOOPBACK_HOSTS)))
        self._accepts_any = not options.is_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            self._accepts_any
            or scope["type"] != "http"
            or _host_name(Headers(scope=scope).get("host", "")) in self._known_hosts
        ):
            await self._app(scope, receive, send)
            return
        message = f"this server answers to {', '.join(self._known_hosts)} alone; ask it by one of these names"
        refusal = ApiError(421, message, "misdirected_request", None, {"connection": "close"})
        await refusal.response()(scope, receive, send)


def _host_name(host: str) -> str:
    """The Host header without its port, in lower case."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


async def read_body(request: Request, max_nbytes: int, timeout_s: float) -> bytes:
    """Reads a JSON body. Raises ApiError: 415 for another type, 413 above `max_nbytes`, 408 after `timeout_s`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"the body's type is {kind or 'missing'}; send application/json", "unsupported_media_type")
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and (nbytes := int(announced)) > max_nbytes:
        if nbytes <= DISCARDED_BODIES * max_nbytes:
            await _discard(request, timeout_s)
        raise ApiError.too_large(max_nbytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read_bounded(request, max_nbytes)
    except TimeoutError:
        close = {"connection": "close"}
        raise ApiError(408, f"the body did not arrive within {timeout_s:g} s", "timeout", None, close) from None


async def _discard(request: Request, timeout_s: float) -> None:
    """Reads the body to its end, or until no part of it came for `QUIET_S`: the client waits for the answer."""
    parts = request.stream()
    with suppress(TimeoutError, StopAsyncIteration):
        async with asyncio.timeout(timeout_s):
            while True:
                async with asyncio.timeout(QUIET_S):
                    await anext(parts)


async def _read_bounded(request: Request, max_nbytes: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_nbytes:
            raise ApiError.too_large(max_nbytes)
    return bytes(body)
