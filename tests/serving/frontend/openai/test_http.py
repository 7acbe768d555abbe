"""A server on loopback accepts requests whose Host header names this machine, and refuses others."""

import asyncio
from typing import Any

import pytest

from serving.frontend.openai.http import HostGuard
from serving.frontend.openai.options import EndpointOptions
from tests.serving.frontend.openai.fake_gateway import Loop
from tests.serving.frontend.openai.plain_http import JSON, request, send


async def _inner(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


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
