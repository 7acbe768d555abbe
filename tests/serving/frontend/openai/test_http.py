"""Connections that would never end are closed. A server on loopback accepts requests whose Host header names this
machine, and refuses others.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from serving.frontend.openai.http import HostGuard, HttpProtocol, HttpServer
from serving.frontend.openai.options import EndpointOptions
from tests.serving.frontend.openai.fake_gateway import Loop
from tests.serving.frontend.openai.plain_http import JSON, request, send


def serving(app: Any, work: Callable[[int], Coroutine[Any, Any, None]], **limits: Any) -> None:
    """Runs `work`, which gets the port of a server of `app`."""

    async def play() -> None:
        server = HttpServer(app, "test", "127.0.0.1", 0, **{"max_connections": 4} | limits)
        await server.start()
        async with asyncio.timeout(20):
            await work(server.port)
        await server.stop()

    asyncio.run(play())


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when the server has lost a connection."""
    found, connection_lost = asyncio.Event(), HttpProtocol.connection_lost

    def heard(self: HttpProtocol, exc: Exception | None) -> None:
        connection_lost(self, exc)
        found.set()

    monkeypatch.setattr(HttpProtocol, "connection_lost", heard)
    return found


@pytest.mark.parametrize("whole", [False, True])
def test_a_client_that_reads_nothing_is_disconnected(lost: asyncio.Event, whole: bool) -> None:
    """In the middle of a response, and where the server waits for nothing but the client."""
    over = asyncio.Event()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        for _ in range(1 if whole else 64):
            await send(
                {
                    "type": "http.response.body",
                    "body": bytes(64_000_000 if whole else 1_000_000),
                    "more_body": not whole,
                }
            )
        over.set()

    async def work(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(request("GET", "/"))
        await lost.wait()
        await over.wait()
        writer.transport.abort()

    serving(answer, work, stall_timeout_s=0.05)


class ByHand:
    """A loop and a transport whose timer is fired, and whose buffer is emptied, by hand."""

    def __init__(self) -> None:
        self.waiting, self.aborted, self.timers = 100, False, list[Any]()

    def call_later(self, seconds: float, call: Any, *args: Any) -> Any:
        self.timers.append((seconds, call, args))
        return None

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def abort(self) -> None:
        self.aborted = True

    def fire(self) -> None:
        seconds, call, args = self.timers.pop()
        assert seconds == HttpProtocol.stall_timeout_s
        call(*args)


def test_a_client_that_reads_slowly_stays() -> None:
    """What it takes within each time is enough, though the buffer never empties."""
    protocol, by_hand = HttpProtocol.__new__(HttpProtocol), ByHand()
    protocol.loop = protocol.transport = by_hand  # type: ignore[assignment]
    protocol._start_stall_timer()
    for waiting in (99, 50):
        by_hand.waiting = waiting
        by_hand.fire()
        assert not by_hand.aborted
    by_hand.fire()
    assert by_hand.aborted


@pytest.mark.parametrize("body", [0, 1000])
def test_a_byte_after_a_response_holds_no_connection(
    lost: asyncio.Event, monkeypatch: pytest.MonkeyPatch, body: int
) -> None:
    """Neither the first of a next request, nor one of a body that nothing reads."""
    monkeypatch.setattr(HttpProtocol, "header_timeout_s", 0.2)

    async def work(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET / HTTP/1.1\r\nhost: localhost\r\ncontent-length: {body}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n0\r\n\r\n")
        writer.write(b"G")
        assert await reader.read() == b""
        writer.close()
        await lost.wait()

    serving(_empty, work)


def test_a_response_may_take_longer_than_the_header(lost: asyncio.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for the header ends with it."""
    begun, now = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(HttpProtocol, "header_timeout_s", 0.2)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await now.wait()
        await _empty(scope, receive, send)

    async def work(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("GET", "/"))
        await begun.wait()
        other, silent = await asyncio.open_connection("127.0.0.1", port)
        assert await other.read() == b""  # its time began later
        now.set()
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        for each in (silent, writer):
            each.close()

    serving(answer, work)


async def _inner(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def _empty(scope: Any, receive: Any, send: Any) -> None:
    await _inner(scope, receive, send)
    await send({"type": "http.response.body"})


def status(bound: str, host: str | None) -> int:
    """The status that a server on `bound` gives to a request with that Host header."""
    sent: list[Any] = []

    async def heard(message: Any) -> None:
        sent.append(message)

    headers = [] if host is None else [(b"host", host.encode())]
    asyncio.run(HostGuard(_inner, EndpointOptions(host=bound))({"type": "http", "headers": headers}, None, heard))  # type: ignore[arg-type]
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("bound", "host"),
    [
        ("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "127.0.0.1:8000"), ("127.0.0.1", "LocalHost:8000"),
        ("::1", "[::1]:8000"), ("::1", "[::1]"), ("localhost", "localhost:1"), ("127.0.0.2", "127.0.0.2:8000"),
        ("127.0.0.2", "localhost"), ("0.0.0.0", "device.example:8000"), ("device.example", "anything"),
    ],
)  # fmt: skip
def test_allowed_host_headers_pass(bound: str, host: str) -> None:
    assert status(bound, host) == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example:80", "", ":80", None]
)  # fmt: skip
@pytest.mark.parametrize("bound", ["127.0.0.1", "::1", "127.0.0.2", "localhost"])
def test_foreign_host_headers_get_421_on_loopback(bound: str, host: str | None) -> None:
    assert status(bound, host) == 421


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/v1/route"), ("GET", "/metrics")]
)
def test_every_endpoint_url_checks_the_host_header(loop: Loop, method: str, path: str) -> None:
    foreign = request(method, path, JSON).replace(b"host: localhost", b"host: evil.example")
    found = loop.run(send(loop, foreign))
    assert (found.status, found.error["code"], found.headers["connection"]) == (421, "misdirected_request", "close")
    assert "127.0.0.1, localhost, [::1]" in found.error["message"]
    assert loop.gateway.asks == []


@pytest.mark.parametrize(("host", "shown"), [("::1", "[::1]"), ("127.0.0.2", "127.0.0.2"), ("localhost", "localhost")])
def test_ipv6_hosts_have_brackets_in_urls(host: str, shown: str) -> None:
    assert EndpointOptions(host=host).url_host == shown
