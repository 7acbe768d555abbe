"""The project's OpenAI endpoint as the server, which refuses every field that it does not know."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest

from serving.engines.remote.opening import connect_remote
from serving.engines.tokenizer import Tokenizer
from serving.frontend.openai.gateway import Conversation, TokenDelta
from serving.frontend.openai.options import EndpointOptions
from serving.frontend.openai.server import serve
from serving.messages import ForwardWork, RoutingOptions, SamplingParams, SequenceSlice, Span, Verdict
from tests.serving.engines.remote.conftest import counting, server
from tests.serving.frontend.openai.fake_gateway import FakeGateway

BRAIN = counting(50)


@dataclass
class Writing(FakeGateway):
    """A device that writes what a brain says, up to an end token behind a full stop."""

    async def generate(
        self,
        prompt: tuple[int, ...],
        limit: int,
        sampling: SamplingParams | None,
        conversation: Conversation | None,
        routing: RoutingOptions | None = None,
        stop_strings: tuple[str, ...] = (),
    ) -> AsyncGenerator[TokenDelta, None]:
        text = list(prompt)
        for n in range(1, limit + 1):
            ended = len(text) >= 12
            text.append(self.tokenizer.eos_token_ids[0] if ended else BRAIN(tuple(text)))
            yield TokenDelta((text[-1],), ("cloud",), "complete" if ended or n == limit else "")
            if ended:
                return


def played(scene: Any, tokenizer: Tokenizer, **how: Any) -> None:
    async def scenario() -> None:
        running = await serve(EndpointOptions(port=0, api_key_env="", max_waiting=8, max_connections=20), Writing())
        url = f"http://127.0.0.1:{running.port}/v1"
        try:
            await asyncio.wait_for(asyncio.to_thread(scene, url), 20)
        finally:
            await running.stop(0)

    asyncio.run(scenario())


@pytest.mark.parametrize("span", [1, 3])
def test_the_projects_endpoint_as_server_writes_a_text_to_its_end(tokenizer: Tokenizer, span: int) -> None:
    def scene(url: str) -> None:
        engine = connect_remote(server(url, model="toy", tokens_per_request=span), tokenizer, len(tokenizer), False)
        text, prompt = (40, 41, 42), (40, 41, 42)
        start = 0
        while text[-1] not in tokenizer.eos_token_ids:
            seq = SequenceSlice("a", start, len(text) - start, text[start:], 0, "greedy")
            outcome, _ = engine.execute(ForwardWork(Span(0, 1, True, True), (seq,), ("last",)))
            verdict = outcome[0].verdict
            assert isinstance(verdict, Verdict)
            start, text = len(text), (*text, verdict.next_token)
        assert tokenizer.hf.decode(text[:-1]) == tokenizer.hf.decode(_written(prompt))

    played(scene, tokenizer)


def _written(text: tuple[int, ...]) -> tuple[int, ...]:
    while len(text) < 12:
        text = (*text, BRAIN(text))
    return text


def test_the_projects_endpoint_is_refused_for_verification(tokenizer: Tokenizer) -> None:
    def scene(url: str) -> None:
        with pytest.raises(ValueError, match=r"echo=true is not supported here.*hybrid"):
            connect_remote(server(url, model="toy"), tokenizer, len(tokenizer), True)

    played(scene, tokenizer)
