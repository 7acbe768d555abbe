"""The official client against an endpoint on loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from serving.frontend.openai.gateway import TokenDelta, UnsupportedRequestError
from serving.messages import SamplingParams
from tests.serving.frontend.openai.fake_gateway import FakeGateway, Loop

openai = pytest.importorskip("openai", reason="the official client is not installed: pip install openai")

USER = [{"role": "user", "content": "where is the red key?"}]
ANSWER = "it is in the box."


@pytest.fixture
def ask(loop: Loop) -> Callable[[Callable[[Any], Coroutine[Any, Any, Any]]], Any]:
    """Runs a coroutine function with a client of the endpoint."""

    def run(work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        async def within() -> Any:
            async with client(loop) as found:
                return await work(found)

        return loop.run(within())

    return run


@asynccontextmanager
async def client(loop: Loop, key: str = "none") -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=f"{loop.url}/v1", api_key=key, max_retries=0) as found:
        yield found


async def streamed(coming: Any) -> list[Any]:
    async with await coming as stream:
        return [chunk async for chunk in stream]


def own_releases(gateway: FakeGateway) -> list[str]:
    """Releases of the conversations of this test; those of an earlier one may expire meanwhile."""
    own = {asked.conversation.name for asked in gateway.asks}
    return [name for name in gateway.released if name in own]


def test_models_are_listed_and_found(ask: Any) -> None:
    models = ask(lambda c: listed(c.models.list()))
    assert [(model.id, model.object, model.created) for model in models] == [("toy", "model", 1_700_000_000)]
    assert ask(lambda c: c.models.retrieve("toy")).id == "toy"
    with pytest.raises(openai.NotFoundError, match="serves 'toy'"):
        ask(lambda c: c.models.retrieve("org/other"))


async def listed(page: Any) -> list[Any]:
    return [model async for model in page]


def test_a_completion_has_text_usage_and_origins(loop: Loop, ask: Any) -> None:
    found = ask(lambda c: c.completions.create(model="toy", prompt="where?", max_tokens=50, temperature=0))
    n = len(loop.gateway.tokens(ANSWER)) + 1
    prompt = loop.gateway.tokens("where?")
    assert (found.object, found.model) == ("text_completion", "toy")
    assert (found.choices[0].text, found.choices[0].finish_reason) == (ANSWER, "stop")
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(prompt), n)
    assert found.usage.total_tokens == len(prompt) + n
    assert found.tandem["origins"] == {"accepted": n}
    assert loop.gateway.asks[0].prompt == prompt
    assert (loop.gateway.asks[0].max_new_tokens, loop.gateway.asks[0].sampling) == (50, None)


def test_the_limit_ends_an_answer(loop: Loop, ask: Any) -> None:
    found = ask(lambda c: c.completions.create(model="toy", prompt="where is it?", max_tokens=3))
    expected = loop.gateway.tokenizer.hf.decode(loop.gateway.tokens(ANSWER)[:3])
    assert (found.choices[0].text, found.choices[0].finish_reason) == (expected, "length")
    assert found.usage.completion_tokens == 3


def test_several_prompts_have_a_choice_each(loop: Loop, ask: Any) -> None:
    loop.gateway.scripts.extend([loop.gateway.says("one"), loop.gateway.says("two")])
    found = ask(lambda c: c.completions.create(model="toy", prompt=["first?", "second?"]))
    assert [(choice.index, choice.text) for choice in found.choices] == [(0, "one"), (1, "two")]
    assert found.usage.prompt_tokens == sum(len(asked.prompt) for asked in loop.gateway.asks)


def test_several_prompts_stream_one_after_the_other(loop: Loop, ask: Any) -> None:
    loop.gateway.scripts.extend([loop.gateway.says("one"), loop.gateway.says("two")])
    chunks = ask(lambda c: streamed(c.completions.create(model="toy", prompt=["1st?", "2nd?"], stream=True)))
    texts = {i: "".join(c.choices[0].text for c in chunks if c.choices[0].index == i) for i in (0, 1)}
    assert texts == {0: "one", 1: "two"}
    assert [hasattr(chunk, "tandem") for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_token_ids_are_accepted_as_a_prompt(loop: Loop, ask: Any) -> None:
    ask(lambda c: c.completions.create(model="toy", prompt=[70, 71, 72]))
    assert loop.gateway.asks[0].prompt == (70, 71, 72)
    with pytest.raises(openai.BadRequestError, match="prompt has token 100000"):
        ask(lambda c: c.completions.create(model="toy", prompt=[100_000]))


def test_chat_messages_go_through_the_template(loop: Loop, ask: Any) -> None:
    found = ask(lambda c: c.chat.completions.create(model="toy", messages=USER, seed=5, temperature=0.7))
    assert (found.object, found.choices[0].message.role) == ("chat.completion", "assistant")
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == (ANSWER, "stop")
    asked = loop.gateway.asks[0]
    text = loop.gateway.tokenizer.hf.decode(asked.prompt, clean_up_tokenization_spaces=False)
    assert text == "<s><|user|>where is the red key?<|assistant|>"
    assert asked.sampling == SamplingParams(0.7, 0, 1.0, 5)
    assert asked.max_new_tokens == loop.gateway.context_len - len(asked.prompt)


@pytest.mark.parametrize("size", [1, 3, 50])
@pytest.mark.parametrize("text", [ANSWER, "Grüße 🙂👩‍🚀 aus 東京", ""])
@pytest.mark.parametrize("stop", [None, ["the", " 東"], "."])
def test_a_stream_has_the_text_of_a_whole_response(loop: Loop, ask: Any, text: str, size: int, stop: Any) -> None:
    loop.gateway.scripts.extend([loop.gateway.says(text, size)] * 2)
    args = {"model": "toy", "messages": USER} | ({"stop": stop} if stop else {})
    whole = ask(lambda c: c.chat.completions.create(**args))
    chunks = ask(lambda c: streamed(c.chat.completions.create(**args, stream=True)))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [whole.choices[0].finish_reason]
    assert chunks[-1].tandem["origins"] == whole.tandem["origins"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_include_usage_adds_a_last_chunk_with_usage(ask: Any) -> None:
    options = {"include_usage": True}
    chunks = ask(
        lambda c: streamed(c.completions.create(model="toy", prompt="a b c", stream=True, stream_options=options))
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == chunks[-2].tandem["origins"]["accepted"]
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_deltas_are_sent_before_the_answer_is_complete(loop: Loop, ask: Any) -> None:
    async def work(c: Any) -> None:
        loop.gateway.steps = asyncio.Semaphore(1)
        async with await c.completions.create(model="toy", prompt="where", max_tokens=50, stream=True) as stream:
            text = ""
            async for chunk in stream:
                text += chunk.choices[0].text
                assert loop.gateway.asks[0].written <= len(loop.gateway.tokens(text)) + 1
                loop.gateway.steps.release()
            assert text == ANSWER

    ask(work)


def test_a_stop_string_cancels_the_request(loop: Loop, ask: Any) -> None:
    found = ask(lambda c: c.completions.create(model="toy", prompt="where", max_tokens=50, stop=[" in", "zzz"]))
    assert (found.choices[0].text, found.choices[0].finish_reason) == ("it is", "stop")
    assert (loop.gateway.asks[0].over, loop.gateway.asks[0].ending) == (True, "")
    assert loop.gateway.asks[0].stop_strings == (" in", "zzz")
    assert found.usage.completion_tokens <= len(loop.gateway.tokens("it is in"))


def test_the_next_turn_reuses_the_cached_prefix(loop: Loop, ask: Any) -> None:
    first = [{"role": "user", "content": "is the box red?"}]
    said = ask(lambda c: c.chat.completions.create(model="toy", messages=first)).choices[0].message.content
    second = [*first, {"role": "assistant", "content": said}, {"role": "user", "content": "and now?"}]
    found = ask(lambda c: c.chat.completions.create(model="toy", messages=second))
    one, two = loop.gateway.asks
    assert one.conversation.name == two.conversation.name
    assert two.conversation.shared_len == len(one.prompt) + len(loop.gateway.tokens(said)) + 1
    assert found.usage.prompt_tokens_details.cached_tokens == two.conversation.shared_len
    other = ask(lambda c: c.chat.completions.create(model="toy", messages=[{"role": "user", "content": "two?"}]))
    assert other.usage.prompt_tokens_details.cached_tokens == 0


def test_the_response_counts_tokens_written_without_the_cloud(loop: Loop, ask: Any) -> None:
    whole = loop.gateway.says("it is in the box.", 2)
    loop.gateway.scripts.append([*whole[:2], *loop.gateway.says(" red", origin="offline")])
    found = ask(lambda c: c.completions.create(model="toy", prompt="?", max_tokens=50))
    n = len(loop.gateway.tokens(" red")) + 1
    assert found.tandem["origins"] == {"accepted": 4, "offline": n}
    assert found.tandem["offline_tokens"] == n
    assert found.tandem["ttft_ms"] > 0


def test_the_synchronous_client_works(loop: Loop) -> None:
    def work() -> tuple[str, str]:
        with openai.OpenAI(base_url=f"{loop.url}/v1", api_key="none", max_retries=0) as c:
            whole = c.chat.completions.create(model="toy", messages=USER)
            chunks = list(c.chat.completions.create(model="toy", messages=USER, stream=True))
        return whole.choices[0].message.content, "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    assert loop.run(asyncio.to_thread(work)) == (ANSWER, ANSWER)


@pytest.mark.parametrize(
    ("args", "error", "says"),
    [
        ({"model": "gpt-5"}, "NotFoundError", "serves 'toy'"),
        ({"n": 2}, "BadRequestError", "n=2 is not supported"),
        ({"prompt": ""}, "BadRequestError", "the prompt has no token"),
        ({"max_tokens": 1000}, "BadRequestError", "context is 128 tokens"),
        ({"prompt": "a b " * 200}, "BadRequestError", "context is 128 tokens"),
        ({"prompt": "a" * 1_100_000}, "APIStatusError", "above 1048576 bytes"),
        ({"extra_headers": {"content-type": "text/plain"}}, "APIStatusError", "send application/json"),
    ],
)
def test_errors_become_the_clients_typed_exceptions(ask: Any, args: dict[str, Any], error: str, says: str) -> None:
    whole = {"model": "toy", "prompt": "a"} | args
    with pytest.raises(getattr(openai, error), match=says):
        ask(lambda c: c.completions.create(**whole))


def test_a_prompt_beyond_the_context_has_its_error_code(ask: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(lambda c: c.chat.completions.create(model="toy", messages=USER, max_completion_tokens=500))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "max_completion_tokens")


@pytest.mark.parametrize("stream", [False, True])
def test_an_unsupported_request_is_a_400(loop: Loop, ask: Any, stream: bool) -> None:
    loop.gateway.scripts.append([UnsupportedRequestError("this policy is greedy; give temperature 0")])
    with pytest.raises(openai.BadRequestError, match="greedy; give temperature 0"):
        ask(lambda c: c.completions.create(model="toy", prompt="a", stream=stream))


@pytest.mark.parametrize("stream", [False, True])
def test_an_unreachable_cloud_is_a_503(loop: Loop, ask: Any, stream: bool) -> None:
    loop.gateway.cloud_reachable = False
    loop.gateway.scripts.append([TokenDelta((), (), "failed")])
    with pytest.raises(openai.InternalServerError, match="cloud cannot be reached") as caught:
        ask(lambda c: c.completions.create(model="toy", prompt="failing", stream=stream))
    assert caught.value.status_code == 503
    assert own_releases(loop.gateway) == [loop.gateway.asks[0].conversation.name]


def test_an_internal_error_reveals_no_details(loop: Loop, ask: Any, caplog: Any) -> None:
    loop.gateway.scripts.append([RuntimeError("secret path")])
    with pytest.raises(openai.InternalServerError, match="inside this device") as caught:
        ask(lambda c: c.completions.create(model="toy", prompt="a"))
    assert "secret" not in str(caught.value)
    assert "secret path" in caplog.text


@pytest.mark.parametrize("late", [TokenDelta((), (), "failed"), RuntimeError("late")])
def test_an_error_in_a_stream_follows_the_text(loop: Loop, ask: Any, late: Any) -> None:
    loop.gateway.cloud_reachable = False
    tokens = loop.gateway.tokens("it is")
    loop.gateway.scripts.append([TokenDelta(tokens, ("cloud",) * len(tokens)), late])

    said = []

    async def work(c: Any) -> None:
        async with await c.completions.create(model="toy", prompt="middle", stream=True) as stream:
            async for chunk in stream:
                said.append(chunk.choices[0].text)  # noqa: PERF401  (what came before the error counts)

    with pytest.raises(openai.APIError, match=r"cloud cannot be reached|inside this device"):
        ask(work)
    assert "".join(said) == "it is"


def test_requests_are_refused_until_the_models_are_loaded(loop: Loop, ask: Any) -> None:
    loop.gateway.ready = False
    with pytest.raises(openai.InternalServerError, match="not loaded yet"):
        ask(lambda c: c.completions.create(model="toy", prompt="a"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_cancels_its_request(loop: Loop, ask: Any, stream: bool) -> None:
    async def work(c: Any) -> None:
        loop.gateway.steps = asyncio.Semaphore(2)
        args = {"model": "toy", "prompt": "leaving", "stream": stream}
        task = asyncio.create_task(streamed(c.completions.create(**args)) if stream else c.completions.create(**args))
        await loop.gateway.until(asks=1)
        task.cancel()
        await asyncio.wait({task})
        await loop.gateway.until_left()

    ask(work)
    assert loop.gateway.asks[0].ending == ""
    assert own_releases(loop.gateway) == [loop.gateway.asks[0].conversation.name]


def test_a_queued_client_that_disconnects_never_reaches_the_gateway(loop: Loop, ask: Any) -> None:
    async def work(c: Any) -> None:
        loop.gateway.steps = asyncio.Semaphore(0)
        first = asyncio.create_task(c.completions.create(model="toy", prompt="first"))
        await loop.gateway.until(asks=1)
        second = asyncio.create_task(c.completions.create(model="toy", prompt="second"))
        await until(lambda: loop.server.service.queue.waiting == 1)
        second.cancel()
        await asyncio.wait({second})
        await until(lambda: loop.server.service.queue.waiting == 0)
        for _ in range(40):
            loop.gateway.steps.release()
        await first

    ask(work)
    assert len(loop.gateway.asks) == 1


async def until(true: Callable[[], bool]) -> None:
    """Lets the loop run until something is so; the test's own time limit bounds it."""
    while not true():
        await asyncio.sleep(0)


def test_the_queue_is_bounded_and_first_come_first_served(loop: Loop, ask: Any) -> None:
    async def work(c: Any) -> list[str]:
        loop.gateway.steps = asyncio.Semaphore(0)
        loop.gateway.scripts.extend(loop.gateway.says(text) for text in ("one", "two", "three"))
        tasks = []
        for n in range(3):  # the endpoint lets two wait
            tasks.append(asyncio.create_task(c.completions.create(model="toy", prompt=f"number {n}")))
            await until(lambda n=n: loop.server.service.queue.waiting == n and len(loop.gateway.asks) == 1)
        with pytest.raises(openai.RateLimitError, match="2 wait already") as caught:
            await c.completions.create(model="toy", prompt="one more")
        assert (caught.value.code, caught.value.response.headers["retry-after"]) == ("queue_full", "1")
        for _ in range(40):
            loop.gateway.steps.release()
        return [found.choices[0].text for found in await asyncio.gather(*tasks)]

    assert ask(work) == ["one", "two", "three"]
