"""Which requests are not for a server that this machine alone can reach."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.options import Door

HERE = ("127.0.0.1", "localhost", "[::1]")


class HostGuard:
    """Behind a door on loopback a request must name this machine, or the door's own host: a foreign name that leads
    here (DNS rebinding: some web site's page asks in its reader's browser) is refused with 421. Other doors are known
    by names that nobody here can list, and let everything pass.
    """

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._known = app, tuple(dict.fromkeys((door.url_host.lower(), *HERE)))
        self._open = not door.loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._open or scope["type"] != "http" or _named(Headers(scope=scope).get("host", "")) in self._known:
            await self._app(scope, receive, send)
            return
        message = f"this server answers to {', '.join(self._known)} alone; ask it by one of these names"
        refusal = ApiError(421, message, "misdirected_request", None, {"connection": "close"})
        await refusal.response()(scope, receive, send)


def _named(host: str) -> str:
    """A Host header without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()
