"""POST /v1/route on a running endpoint over a scripted gateway."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from serving.frontend.openai.gateway import TokenDelta
from serving.frontend.openai.options import EndpointOptions, RoutingLimits
from serving.messages import RoutingOptions
from tests.serving.frontend.openai.fake_gateway import FakeGateway, Loop
from tests.serving.frontend.openai.plain_http import JSON, request, send
from tests.serving.frontend.routing_api.examples import question, routed, state

KEY = "the-key-of-this-test"
SLM = state(1.0, 0.0, 0.0)
"""Scores 0.73."""


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def loop(runner: asyncio.Runner) -> Iterator[Loop]:
    made = opened(runner)
    yield made
    made.close()


def opened(runner: asyncio.Runner, **how: Any) -> Loop:
    end = EndpointOptions(
        port=0,
        **{
            "api_key_env": "",
            "max_waiting": 1,
            "routing": RoutingLimits(0.1, 0.9, max_tokens=8, cached_sessions=2),
            **how,
        },
    )
    return Loop(runner, end, FakeGateway(routed=routed()))


def ask(loop: Loop, body: dict[str, Any] | bytes, key: str = "") -> tuple[int, dict[str, Any]]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return loop.run(posted(loop, raw, key))


async def posted(loop: Loop, raw: bytes, key: str = "") -> tuple[int, dict[str, Any]]:
    shown = [f"authorization: Bearer {key}"] if key else []
    answer = await send(loop, request("POST", "/v1/route", JSON, *shown, body=raw))
    return answer.status, answer.json


def says(loop: Loop, text: str, origin: Any = "cloud", end: bool = True) -> None:
    loop.gateway.scripts.append(loop.gateway.says(text, origin=origin, end=end))


def test_route_slm_writes_no_tokens(loop: Loop) -> None:
    status, told = ask(loop, question(slm_state=SLM))
    assert status == 200
    assert (told["version"], told["route"], told["routing_threshold"]) == (1, "SLM", 0.7)
    assert told["score"] == pytest.approx(0.731, abs=1e-3)
    assert (told["llm_tokens"], told["llm_text"], told["finish_reason"], told["llm_state"]) == ([], "", None, None)
    assert told["meta_data"] == {"session_id": "session123", "request_id": "req456"}
    assert loop.gateway.asks == []


def test_route_llm_sends_a_large_only_request(loop: Loop) -> None:
    says(loop, " box now please", end=False)
    status, told = ask(loop, question(max_tokens=2))
    assert status == 200
    (call,) = loop.gateway.asks
    assert call.prompt == loop.gateway.tokens(question()["context"])
    assert (call.max_new_tokens, call.sampling, call.routing) == (2, None, RoutingOptions(large_only=True))
    assert told["route"] == "LLM"
    assert told["llm_tokens"] == list(loop.gateway.tokens(" box now please"))[:2]
    assert told["llm_text"] == loop.gateway.tokenizer.hf.decode(told["llm_tokens"])
    assert told["finish_reason"] == "length"


def test_one_token_is_the_default_and_an_end_token_stops(loop: Loop) -> None:
    loop.gateway.scripts.append([TokenDelta(loop.gateway.tokenizer.eos_token_ids, ("cloud",), "complete")])
    _, told = ask(loop, question())
    assert loop.gateway.asks[0].max_new_tokens == 1
    assert (told["llm_tokens"], told["llm_text"], told["finish_reason"]) == ([2], "", "stop")


def test_a_next_request_finds_its_cache_and_its_handle_is_valid(loop: Loop) -> None:
    says(loop, " red box", end=False)
    _, first = ask(loop, question(max_tokens=4))
    longer = question()["context"] + first["llm_text"]
    says(loop, " now", end=False)
    _, second = ask(loop, question(context=longer, llm_state=first["llm_state"]))
    assert not any("llm_state" in reason for reason in second["reasons"])
    one, two = (call.conversation for call in loop.gateway.asks)
    assert one and two and (two.name, two.shared_len) == (one.name, len(loop.gateway.tokens(longer)) - 1)  # noqa: PT018
    says(loop, " now", end=False)
    _, stranger = ask(
        loop, question(context=longer, llm_state=first["llm_state"], meta_data={"session_id": "t", "request_id": "r"})
    )
    assert any("llm_state was ignored" in reason for reason in stranger["reasons"])
    three = loop.gateway.asks[2].conversation
    assert three and (three.name != one.name, three.shared_len) == (True, 0)  # noqa: PT018


def test_a_false_history_changes_nothing(loop: Loop) -> None:
    answers = []
    for history in (None, {"previous_decisions": [{"token": "banana", "route": "LLM"}] * 50}):
        says(loop, " box", end=False)
        _, told = ask(loop, question(history=history, llm_state="v1.4.forged", max_tokens=1))
        answers.append({name: told[name] for name in ("route", "score", "routing_threshold", "llm_tokens", "llm_text")})
    assert answers[0] == answers[1]
    assert loop.gateway.asks[0].prompt == loop.gateway.asks[1].prompt


def test_the_owners_limits_hold(loop: Loop) -> None:
    _, told = ask(loop, question(routing_threshold=0.0, slm_state=SLM))
    assert told["routing_threshold"] == 0.1
    status, told = ask(loop, question(max_tokens=9))
    assert (status, told["error"]["param"]) == (400, "max_tokens")
    status, told = ask(loop, question(context="a " * 200))
    assert (status, told["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (question(slm_state=state(1.0)), 400, "slm_state.hidden_states"),
        (question(model="another"), 404, "model"),
        (question(version=7), 400, "version"),
        (b"{", 400, None),
    ],
)
def test_invalid_requests_are_refused_by_field(loop: Loop, body: Any, status: int, param: str | None) -> None:
    got, told = ask(loop, body)
    assert (got, told["error"]["param"]) == (status, param)
    assert loop.gateway.asks == []


def test_a_body_beyond_the_limit_is_not_waited_for(loop: Loop) -> None:
    answer = loop.run(send(loop, request("POST", "/v1/route", JSON, f"content-length: {1 << 21}")))
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


def test_without_a_router_the_url_is_a_404(loop: Loop) -> None:
    loop.gateway.routed = None
    status, told = ask(loop, question())
    assert (status, told["error"]["code"]) == (404, "no_router")
    assert "routes no tokens" in told["error"]["message"]


@pytest.mark.parametrize("origin", ["offline", "device"])
def test_tokens_of_the_device_are_not_returned_as_the_large_models(loop: Loop, origin: Any) -> None:
    says(loop, " box", origin=origin)
    status, told = ask(loop, question())
    assert (status, told["error"]["code"]) == (503, "cloud_unreachable")
    assert loop.gateway.released == ["route-1"]


@pytest.mark.parametrize("origin", ["accepted", "bonus", "corrected"])
def test_tokens_that_the_large_model_verified_are_its_own(loop: Loop, origin: Any) -> None:
    says(loop, " box", origin=origin)
    status, told = ask(loop, question())
    assert (status, told["route"], told["llm_tokens"]) == (200, "LLM", list(loop.gateway.tokens(" box"))[:1])
    assert loop.gateway.released == []


def test_an_incomplete_answer_is_an_error(loop: Loop) -> None:
    loop.gateway.scripts.append([TokenDelta((), (), "failed")])
    status, told = ask(loop, question())
    assert (status, told["error"]["code"]) == (500, "generation_failed")
    says(loop, " box", end=False)
    assert ask(loop, question())[0] == 200


def test_requests_are_refused_while_the_device_is_not_ready(loop: Loop) -> None:
    loop.gateway.ready = False
    assert ask(loop, question())[0] == 503


def test_large_model_requests_wait_in_the_endpoints_queue(loop: Loop) -> None:
    """One runs, one waits, the third gets 429. Decisions for the small model do not wait."""
    gateway = loop.gateway
    gateway.steps = asyncio.Semaphore(0)
    for _ in range(2):
        says(loop, " box", end=False)

    async def scene() -> list[int]:
        raw = json.dumps(question()).encode()
        first = asyncio.create_task(posted(loop, raw))
        await gateway.until(1)
        second = asyncio.create_task(posted(loop, raw))
        while not loop.server.service.queue.waiting:
            await asyncio.sleep(0)
        third, _ = await posted(loop, raw)
        small, _ = await posted(loop, json.dumps(question(slm_state=SLM)).encode())
        for _ in range(40):
            gateway.steps.release()  # type: ignore[union-attr]
        return [(await first)[0], (await second)[0], third, small]

    assert loop.run(scene()) == [200, 200, 429, 200]


def test_metrics_count_requests_by_route(loop: Loop) -> None:
    ask(loop, question(slm_state=SLM))
    says(loop, " box", end=False)
    ask(loop, question())
    ask(loop, question(version=3))
    text = loop.server.service.metrics.text().decode()
    for outcome in ("slm", "llm"):
        assert f'tandem_requests_total{{endpoint="route",outcome="{outcome}"}} 1.0' in text
    assert 'tandem_tokens_total{origin="cloud"}' in text


def test_the_key_is_required_and_identifies_the_client(runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTE_KEY", KEY)
    keyed = opened(runner, api_key_env="ROUTE_KEY")
    try:
        assert ask(keyed, question())[0] == 401
        assert ask(keyed, question(), "wrong")[0] == 401
        says(keyed, " box", end=False)
        status, told = ask(keyed, question(), KEY)
        assert status == 200
        assert KEY not in json.dumps(told)
        ((client, session),) = keyed.routing.sessions._idle
        assert session == "session123"
        assert len(client) == 64
        assert KEY not in client
    finally:
        keyed.close()
