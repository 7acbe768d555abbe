"""What every response of the page carries, and which requests are not for it."""

from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.endpoint.errors import ApiError

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
HERE = frozenset(("127.0.0.1", "localhost", "[::1]"))


class Guarded:
    """Adds the headers. With `loopback` a request must name this machine: a foreign name that leads here (DNS
    rebinding) is refused with 421.
    """

    def __init__(self, app: ASGIApp, loopback: bool) -> None:
        self._app, self._loopback = app, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if self._loopback and not _names_this_machine(Headers(scope=scope).get("host", "")):
            refusal = ApiError(421, "this page answers to 127.0.0.1 and localhost alone", "misdirected_request")
            await refusal.response()(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)


def _names_this_machine(host: str) -> bool:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower() in HERE
