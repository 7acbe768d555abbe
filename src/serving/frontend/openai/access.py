"""Checks before a request is served: its API key, its Host header, and the size and type of its body."""

import asyncio
import hmac
from collections.abc import Collection
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.options import ServerOptions

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
        return scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode("latin-1"), self._key)


LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")


class HostGuard:
    """On a loopback server, refuses requests (421) whose Host header is neither this machine nor the configured host.

    This stops DNS rebinding, where a foreign web page reaches a local server through its reader's browser. Servers on
    other addresses accept any Host header, since their names are not known here.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
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
    if announced.isdecimal() and int(announced) > max_nbytes:
        raise ApiError.too_large(max_nbytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read_bounded(request, max_nbytes)
    except TimeoutError:
        close = {"connection": "close"}
        raise ApiError(408, f"the body did not arrive within {timeout_s:g} s", "timeout", None, close) from None


async def _read_bounded(request: Request, max_nbytes: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_nbytes:
            raise ApiError.too_large(max_nbytes)
    return bytes(body)
