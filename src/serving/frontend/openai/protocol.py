"""HTTP/1.1 as uvicorn speaks it, for tokens that cannot wait and against connections that say nothing."""

import asyncio
import socket

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S = 10.0


class Protocol(H11Protocol):
    """Closes a connection whose first request has not begun within `headers_s`; idle ones would use up the limit."""

    headers_s = HEADERS_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio does this only for sockets made with an explicit protocol number; without it Nagle's algorithm holds
        # a token back until the client acknowledges the one before, up to 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._first = self.loop.call_later(self.headers_s, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._first.cancel()
        super().connection_lost(exc)

    def _late(self) -> None:
        if self.cycle is None:
            self.transport.close()
