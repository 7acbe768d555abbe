"""A bound on a whole HTTP request, which `httpx2` lacks: its timeouts begin anew with each byte that arrives."""

import ssl
import threading
from collections.abc import Callable, Iterable
from typing import Any

import httpcore2
import httpx2


class Deadline(threading.local):
    """When the request that the current thread runs must be over; each thread has its own."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._at_s = clock, clock()

    def begin(self, timeout_s: float) -> None:
        self._at_s = self._clock() + timeout_s

    def left_s(self, timeout_s: float | None) -> float:
        """The shorter of `timeout_s` and the time left. Raises httpcore2.ReadTimeout if none is."""
        left_s = self._at_s - self._clock()
        if left_s <= 0:
            raise httpcore2.ReadTimeout
        return left_s if timeout_s is None else min(timeout_s, left_s)


class DeadlineTransport(httpx2.HTTPTransport):
    """Connects directly, in HTTP/1.1; every step of a request ends by the deadline."""

    def __init__(self, deadline: Deadline, ssl_context: ssl.SSLContext, limits: httpx2.Limits) -> None:
        super().__init__(verify=ssl_context, trust_env=False)
        self._pool = httpcore2.ConnectionPool(
            ssl_context=ssl_context,
            max_connections=limits.max_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=_Backend(deadline),
        )


class _Backend(httpcore2.SyncBackend):
    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        stream = super().connect_tcp(host, port, self._deadline.left_s(timeout), local_address, socket_options)
        return _Stream(stream, self._deadline)


class _Stream(httpcore2.NetworkStream):
    def __init__(self, stream: httpcore2.NetworkStream, deadline: Deadline) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left_s(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._deadline.left_s(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        stream = self._stream.start_tls(ssl_context, server_hostname, self._deadline.left_s(timeout))
        return _Stream(stream, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
