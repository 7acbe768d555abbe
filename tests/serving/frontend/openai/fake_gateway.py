"""A gateway with scripted answers, and an endpoint over it in a test's event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from starlette.routing import Route

from serving.frontend.openai.gateway import Conversation, TokenDelta
from serving.frontend.openai.options import EndpointOptions
from serving.frontend.openai.server import EndpointServer, serve
from serving.frontend.openai.service import EndpointService
from serving.frontend.routing_api.handler import routing_routes
from serving.messages import Origin, RoutingOptions, SamplingParams
from tests.support.tiny_tokenizers import byte_level

T = TypeVar("T")


class FakeTokenizer:
    """The part of `serving.engines.tokenizer.Tokenizer` that the endpoint uses."""

    def __init__(self) -> None:
        self.hf = byte_level()
        self.eos_token_ids = (self.hf.eos_token_id,)

    def __len__(self) -> int:
        return len(self.hf)


@dataclass
class Ask:
    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams | None
    conversation: Conversation | None
    routing: RoutingOptions | None = None
    stop_strings: tuple[str, ...] = ()
    ending: str = ""
    written: int = 0
    over: bool = False
    """Ended or closed."""


@dataclass
class FakeGateway:
    model_name: str = "toy"
    created_unix_s: int = 1_700_000_000
    context_len: int = 128
    ready: bool = True
    cloud_reachable: bool = True
    uplink_nbytes: int = 300
    downlink_nbytes: int = 40
    tokenizer: Any = field(default_factory=FakeTokenizer)
    routed: Any = None
    """The slot that routes tokens, if any."""
    scripts: deque[list[TokenDelta | Exception]] = field(default_factory=deque)
    """Answers of the next requests; without one, "it is in the box."."""
    asks: list[Ask] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    steps: asyncio.Semaphore | None = None
    """If given, each delta waits for it."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request begins or ends."""
    cached_tokens_of: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Per conversation, the tokens in its cache."""

    def tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.hf(text, add_special_tokens=False)["input_ids"])

    def says(
        self, text: str, size: int = 1, origin: Origin = "accepted", end: bool = True
    ) -> list[TokenDelta | Exception]:
        """The deltas of a text, `size` tokens each, and an end token."""
        tokens = self.tokens(text) + (self.tokenizer.eos_token_ids if end else ())
        cuts = [tokens[i : i + size] for i in range(0, len(tokens), size)]
        pieces = [TokenDelta(cut, (origin,) * len(cut)) for cut in cuts]
        return [*pieces[:-1], TokenDelta(pieces[-1].tokens, pieces[-1].origins, "complete")]

    async def generate(
        self,
        prompt: tuple[int, ...],
        max_new_tokens: int,
        sampling: SamplingParams | None,
        conversation: Conversation | None,
        routing: RoutingOptions | None = None,
        stop_strings: tuple[str, ...] = (),
    ) -> AsyncGenerator[TokenDelta, None]:
        asked = Ask(prompt, max_new_tokens, sampling, conversation, routing, stop_strings)
        self.asks.append(asked)
        self.changed.set()
        script = self.scripts.popleft() if self.scripts else self.says("it is in the box.")
        cached = self._reuse(asked)
        try:
            for piece in script:
                if self.steps:
                    await self.steps.acquire()
                if isinstance(piece, Exception):
                    raise piece
                kept = replace(self._cut(piece, asked), cached_tokens=cached)
                asked.ending, cached = kept.ending, 0
                yield kept
                if kept.ending:
                    return
        finally:
            asked.over = True
            self.changed.set()

    def _cut(self, piece: TokenDelta, asked: Ask) -> TokenDelta:
        tokens = piece.tokens[: asked.max_new_tokens - asked.written]
        asked.written += len(tokens)
        if asked.conversation:
            self.cached_tokens_of[asked.conversation.name] += tokens
        ending = piece.ending or ("complete" if asked.written == asked.max_new_tokens else "")
        return TokenDelta(tokens, piece.origins[: len(tokens)], ending)

    def _reuse(self, asked: Ask) -> int:
        if asked.conversation is None:
            return 0
        name, shared = asked.conversation.name, asked.conversation.shared_len
        assert self.cached_tokens_of.get(name, ())[:shared] == asked.prompt[:shared]
        self.cached_tokens_of[name] = asked.prompt
        return shared

    def release(self, conversation: str) -> None:
        self.released.append(conversation)
        self.cached_tokens_of.pop(conversation, None)

    async def until(self, asks: int) -> None:
        """Returns when `asks` requests have begun."""
        while len(self.asks) < asks:
            self.changed.clear()
            await self.changed.wait()

    async def until_left(self, ask: int = 0) -> None:
        """Returns when that request has ended."""
        while len(self.asks) <= ask or not self.asks[ask].over:
            self.changed.clear()
            await self.changed.wait()


class Loop:
    """An endpoint that runs while a test runs in its loop."""

    def __init__(self, runner: asyncio.Runner, endpoint: EndpointOptions, gateway: FakeGateway | None = None) -> None:
        self._runner = runner
        self.gateway = gateway or FakeGateway()
        self.routing: Any = None
        """The routing API's endpoint, once the server runs."""
        self.server: EndpointServer = runner.run(serve(endpoint, self.gateway, self._mount_routing))
        self.url = f"http://127.0.0.1:{self.server.port}"

    def _mount_routing(self, service: EndpointService) -> Sequence[Route]:
        routes = routing_routes(service)
        self.routing = routes[0].endpoint
        return routes

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """With a time limit, so that a hanging test fails."""
        return self._runner.run(asyncio.wait_for(work, 20))

    def close(self) -> None:
        self._runner.run(self.server.stop(0))
