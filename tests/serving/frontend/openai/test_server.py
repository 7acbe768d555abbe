import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

import pytest

from serving.frontend.openai.http import HttpProtocol
from serving.frontend.openai.options import EndpointOptions
from serving.frontend.openai.server import serve
from tests.serving.frontend.openai.fake_gateway import FakeGateway, Loop
from tests.serving.frontend.openai.plain_http import JSON, Answer, asking, request, send

Get = Callable[[bytes], Answer]


@pytest.fixture
def get(loop: Loop) -> Get:
    return lambda raw: loop.run(send(loop, raw))


def test_healthz_is_alive(get: Get) -> None:
    assert get(request("GET", "/healthz")).json == {"alive": True}


def test_readyz_gives_the_reason(loop: Loop, get: Get) -> None:
    assert get(request("GET", "/readyz")).json == {"ready": True, "cloud": True, "why": None}
    loop.gateway.cloud_reachable = False
    assert get(request("GET", "/readyz")).status == 200
    loop.gateway.ready = False
    found = get(request("GET", "/readyz"))
    assert (found.status, found.json["ready"]) == (503, False)
    assert "cloud cannot be reached" in found.json["why"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/embeddings", 404, "not_found"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
        ("POST", "/v1/completions", 415, "unsupported_media_type"),
    ],
)
def test_errors_have_one_shape(get: Get, method: str, path: str, status: int, code: str) -> None:
    found = get(request(method, path))
    assert (found.status, found.error["code"], found.error["type"]) == (status, code, "invalid_request_error")


def test_a_stream_is_server_sent_events(get: Get) -> None:
    found = get(asking(stream=True, max_tokens=50))
    assert found.headers["content-type"].startswith("text/event-stream")
    events = [line for line in found.body.decode().split("\r\n") if line.startswith("data: ")]
    assert events[0].startswith('data: {"id":"cmpl-')
    assert b"data: [DONE]\n\n" in found.body


def test_connections_have_tcp_nodelay(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nagle's algorithm must be off: 44 ms instead of 2 ms for a request of one token were measured with it."""
    seen: list[int] = []
    made = HttpProtocol.connection_made

    def connection_made(self: HttpProtocol, transport: asyncio.Transport) -> None:
        made(self, transport)
        seen.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(HttpProtocol, "connection_made", connection_made)
    loop.run(send(loop, request("GET", "/healthz")))
    assert [bool(on) for on in seen] == [True]


def test_a_chunked_body_is_bounded(get: Get) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    head = request("POST", "/v1/completions", JSON, "transfer-encoding: chunked")
    found = get(head + chunk * 17)
    assert (found.status, found.error["code"]) == (413, "request_too_large")


def test_a_client_that_sends_too_much_at_once_reads_why_it_is_refused(loop: Loop) -> None:
    """It reads when it has sent all, as urllib does."""
    body = b" " * 10_000_000
    found = loop.run(send(loop, request("POST", "/v1/completions", JSON, body=body), at_once=True))
    assert (found.status, found.error["code"]) == (413, "request_too_large")


def test_metrics_count_requests_tokens_and_times(loop: Loop, get: Get) -> None:
    before = metrics(get(request("GET", "/metrics")))
    get(asking(max_tokens=50))
    get(asking(max_tokens=2, stream=True))
    get(asking(n=5))
    after = metrics(get(request("GET", "/metrics")))
    grown = {name: after[name] - before.get(name, 0) for name in after}
    n = len(loop.gateway.tokens("it is in the box.")) + 1
    assert grown['tandem_requests_total{endpoint="completions",outcome="stop"}'] == 1
    assert grown['tandem_requests_total{endpoint="completions",outcome="length"}'] == 1
    assert grown['tandem_requests_total{endpoint="completions",outcome="unsupported_parameter"}'] == 1
    assert grown['tandem_tokens_total{origin="accepted"}'] == n + 2
    assert grown["tandem_ttft_seconds_count"] == 2
    assert grown["tandem_tbt_seconds_count"] == n
    assert grown["tandem_prompt_tokens_total"] == 2 * len(loop.gateway.tokens("where"))
    assert (after["tandem_queue_length"], after["tandem_cloud_reachable"]) == (0, 1)
    assert (after["tandem_uplink_bytes_total"], after["tandem_downlink_bytes_total"]) == (300, 40)


def metrics(page: Answer) -> dict[str, float]:
    lines = [line for line in page.body.decode().splitlines() if line.startswith("tandem")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


class TestItsOwn:
    """Endpoints that differ from the shared one."""

    @pytest.fixture
    def made(self, runner: asyncio.Runner, request: pytest.FixtureRequest) -> Callable[..., Loop]:
        def make(**fields: Any) -> Loop:
            loop = Loop(runner, EndpointOptions(port=0, **fields))
            request.addfinalizer(loop.close)
            return loop

        return make

    def test_requests_without_the_key_get_401(self, made: Any, monkeypatch: Any, caplog: Any) -> None:
        caplog.set_level(logging.DEBUG)
        monkeypatch.setenv("A_KEY", "sesame!")
        loop = made(api_key_env="A_KEY")
        right = "authorization: Bearer sesame!"
        for wrong in ((), ("authorization: Bearer sesame",), ("authorization: Basic sesame!",), ("authorization:",)):
            for path in ("/v1/models", "/metrics", "/v1/nothing"):
                found = loop.run(send(loop, request("GET", path, *wrong)))
                assert (found.status, found.error["code"]) == (401, "invalid_api_key")
        assert loop.run(send(loop, request("GET", "/v1/models", right))).status == 200
        assert loop.run(send(loop, request("GET", "/healthz"))).status == 200
        assert loop.run(send(loop, request("GET", "/readyz"))).status == 200
        assert "sesame" not in caplog.text

    def test_blanks_around_a_shown_key_do_not_count(self, made: Any, monkeypatch: Any) -> None:
        monkeypatch.setenv("A_KEY", "sesame")
        loop = made(api_key_env="A_KEY")
        assert loop.run(send(loop, request("GET", "/v1/models", "authorization: Bearer  sesame\t"))).status == 200

    def test_a_key_that_many_clients_cannot_send_is_refused(self, made: Any, monkeypatch: Any) -> None:
        monkeypatch.setenv("A_KEY", "sésame")
        with pytest.raises(ValueError, match="A_KEY is not printable ASCII"):
            made(api_key_env="A_KEY")

    def test_the_client_raises_an_authentication_error_for_a_wrong_key(self, made: Any, monkeypatch: Any) -> None:
        openai = pytest.importorskip("openai", reason="the official client is not installed: pip install openai")
        monkeypatch.setenv("A_KEY", "sesame")
        loop = made(api_key_env="A_KEY")

        async def models(key: str) -> int:
            async with openai.AsyncOpenAI(base_url=f"{loop.url}/v1", api_key=key, max_retries=0) as client:
                return len((await client.models.list()).data)

        assert loop.run(models("sesame")) == 1
        with pytest.raises(openai.AuthenticationError, match="missing or wrong"):
            loop.run(models("sesam"))

    def test_a_body_that_does_not_arrive_gets_408(self, made: Any) -> None:
        loop = made(body_timeout_s=0.05)
        head = request("POST", "/v1/completions", JSON, "content-length: 100")
        found = loop.run(send(loop, head + b"{"))
        assert (found.status, found.error["code"]) == (408, "timeout")

    def test_a_connection_without_a_request_is_closed(self, made: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr("serving.frontend.openai.http.HttpProtocol.header_timeout_s", 0.05)
        loop = made()

        async def silent() -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", loop.server.port)
            writer.write(b"GET / HT")
            found = await reader.read()
            writer.close()
            return found

        assert loop.run(silent()) == b""

    @pytest.mark.parametrize(("others", "status"), [(0, 200), (1, 200), (2, 503)])
    def test_connections_are_bounded(self, made: Any, others: int, status: int) -> None:
        loop = made(max_connections=2)

        async def last() -> Answer:
            before = [await asyncio.open_connection("127.0.0.1", loop.server.port) for _ in range(others)]
            found = await send(loop, request("GET", "/healthz"))
            for _, writer in before:
                writer.close()
            return found

        assert loop.run(last()).status == status

    def test_one_connection_is_enough(self, made: Any) -> None:
        loop = made(max_connections=1)
        assert loop.run(send(loop, request("GET", "/healthz"))).status == 200

    def test_stopping_breaks_off_answers_after_the_grace_time(self, made: Any) -> None:
        loop = made()

        async def work() -> list[Answer]:
            loop.gateway.steps = asyncio.Semaphore(3)
            streaming = asyncio.create_task(send(loop, asking(stream=True, max_tokens=50)))
            await loop.gateway.until(asks=1)
            waiting = asyncio.create_task(send(loop, asking()))
            while not loop.server.service.queue.waiting:
                await asyncio.sleep(0)
            await loop.server.stop(grace_s=0)
            return [await streaming, await waiting]

        cut, refused = loop.run(work())
        assert b'"code":"shutting_down"' in cut.body
        assert b"[DONE]" not in cut.body
        assert (refused.status, refused.error["code"]) == (503, "shutting_down")
        assert [asked.over for asked in loop.gateway.asks] == [True]

    def test_stopping_lets_running_answers_finish(self, made: Any) -> None:
        loop = made()

        async def work() -> Answer:
            loop.gateway.steps = asyncio.Semaphore(0)
            asked = asyncio.create_task(send(loop, asking()))
            await loop.gateway.until(asks=1)
            stopping = asyncio.create_task(loop.server.stop(grace_s=10))
            while not loop.server.service.running.stopping:
                await asyncio.sleep(0)
            late = await send(loop, asking())
            assert (late.status, late.error["message"]) == (503, "this device is shutting down")
            for _ in range(40):
                loop.gateway.steps.release()
            await stopping
            return await asked

        assert loop.run(work()).json["choices"][0]["text"] == "it is in the box."


def test_a_port_in_use_is_a_value_error(runner: asyncio.Runner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"cannot listen on 127.0.0.1 port {port} .*choose another"):
            runner.run(serve(EndpointOptions(port=port, api_key_env=""), FakeGateway()))
