"""The parts of an endpoint around one gateway, and the way of a request through them: queue, prefix, tokens, text."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from serving.core.keyed_random import key
from serving.frontend.openai.admission import (
    AdmissionQueue,
    RunningRequests,
    cancel_on_disconnect,
)
from serving.frontend.openai.detokenizer import AnswerWriter
from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.gateway import Gateway, PrefixIndex, UnsupportedRequestError
from serving.frontend.openai.http import read_body
from serving.frontend.openai.metrics import EndpointMetrics, RequestStats
from serving.frontend.openai.options import EndpointOptions
from serving.frontend.openai.request_handlers import FinishReason, ParsedRequest, RequestHandler
from serving.frontend.openai.schema import parse_body
from serving.messages import SamplingParams

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """One request's prompts, in tokens, with a limit for each."""

    prompts: Sequence[tuple[int, ...]]
    max_new_tokens: Sequence[int]
    sampling: SamplingParams | None
    stop_strings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of the answer to prompt `index`; the last delta of each answer has a `finish_reason`."""

    index: int
    text: str
    finish_reason: FinishReason | None = None


class AnswerGenerator:
    """Runs jobs: waits in the queue, looks up a cached prefix, and turns the gateway's tokens into text."""

    def __init__(
        self, gateway: Gateway, queue: AdmissionQueue, prefix_index: PrefixIndex, clock: Callable[[], float]
    ) -> None:
        self.gateway, self.queue, self.prefix_index, self.clock = gateway, queue, prefix_index, clock

    async def generate(self, job: GenerationJob, stats: RequestStats) -> AsyncGenerator[TextDelta, None]:
        """Text of all answers, in the order of the prompts. Raises ApiError; closing the generator cancels the job."""
        async with self.queue.admit():
            for index in range(len(job.prompts)):
                async with aclosing(self._generate_one(job, index, stats)) as deltas:
                    async for delta in deltas:
                        yield delta

    async def _generate_one(
        self, job: GenerationJob, index: int, stats: RequestStats
    ) -> AsyncGenerator[TextDelta, None]:
        prompt = job.prompts[index]
        stats.begin_prompt(len(prompt))
        writer = AnswerWriter(
            self.gateway.tokenizer, job.stop_strings, lambda origin: stats.count_token(origin, self.clock())
        )
        conversation = self.prefix_index.acquire(prompt)
        try:
            limit = job.max_new_tokens[index]
            deltas = self.gateway.generate(prompt, limit, job.sampling, conversation, stop_strings=job.stop_strings)
            async with aclosing(deltas):
                async for delta in deltas:
                    stats.cached_tokens += delta.cached_tokens
                    if text := writer.add(delta):
                        yield TextDelta(index, text)
                    if writer.finish_reason or delta.ending:
                        break
            if not writer.finish_reason:
                raise ApiError.failed(self.gateway.cloud_reachable)
        except BaseException:
            self.prefix_index.discard(conversation)
            raise
        self.prefix_index.store(conversation, prompt, tuple(writer.tokens))
        yield TextDelta(index, "", writer.finish_reason)


class EndpointService:
    """What the URLs of one endpoint share. `clock` returns seconds, for TTFT and TBT."""

    def __init__(
        self, options: EndpointOptions, gateway: Gateway, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.options, self.gateway, self.clock = options, gateway, clock
        self.queue = AdmissionQueue(options.max_waiting, options.retry_after_s)
        self.prefix_index = PrefixIndex(options.cached_conversations, gateway.release)
        self.running = RunningRequests()
        self.answer_generator = AnswerGenerator(gateway, self.queue, self.prefix_index, clock)
        self.metrics = EndpointMetrics(gateway, self.queue, self.running)
        self._num_requests = 0

    @property
    def model_name(self) -> str:
        return self.options.model_name or self.gateway.model_name

    @property
    def unready_reason(self) -> str:
        """Why requests are refused now; empty if they are not."""
        if self.running.stopping:
            return "this device is shutting down"
        if self.gateway.ready:
            return ""
        if self.gateway.cloud_reachable:
            return "this device's models are not loaded yet"
        return "the cloud cannot be reached, and this device's policy does not answer without it"

    async def serve(self, endpoint: str, scope: Scope, receive: Receive, send: Send, answer: "Answer") -> None:
        """Reads a request's body, answers until the client disconnects, and records how the request ended."""
        options, stats = self.options, RequestStats(self.clock())
        try:
            raw = await read_body(Request(scope, receive), options.max_body_nbytes, options.body_timeout_s)
            await cancel_on_disconnect(receive, answer(raw, send, stats))
        except ClientDisconnect:
            pass  # the request is cancelled, and there is no client to answer
        except Exception as error:
            refusal = as_api_error(error)
            stats.outcome = refusal.code or "error"
            await refusal.response()(scope, receive, send)
        finally:
            self.metrics.record(endpoint, stats)

    def check_model(self, model: str) -> None:
        """Raises ApiError (404) for a model that is not served here."""
        if model != self.model_name:
            message = f"the model {model!r} does not exist here; this device serves {self.model_name!r}"
            raise ApiError(404, message, "model_not_found", "model")

    async def parse_request(self, handler: RequestHandler, raw: bytes) -> tuple[ParsedRequest, GenerationJob]:
        """Raises ApiError."""
        if self.unready_reason:
            raise ApiError(503, self.unready_reason, "not_ready")
        self._num_requests += 1
        seed = key(self.options.seed, f"request {self._num_requests}") >> 1
        parsed = handler.parse(parse_body(raw), self.options.default_temperature, seed)
        self.check_model(parsed.params.model)
        prompts = await asyncio.to_thread(handler.encode, parsed, self.gateway.tokenizer)
        limits = [self._max_new_tokens(handler, parsed, len(prompt)) for prompt in prompts]
        stop_strings = parsed.params.stop_strings + handler.stop_strings(self.gateway.tokenizer)
        return parsed, GenerationJob(prompts, limits, parsed.params.sampling, stop_strings)

    def _max_new_tokens(self, handler: RequestHandler, parsed: ParsedRequest, prompt_len: int) -> int:
        """The client's limit, which must fit in the context, or the handler's default, cut to what fits."""
        context_len, wanted = self.gateway.context_len, parsed.params.max_tokens
        if prompt_len >= context_len or prompt_len + (wanted or 0) > context_len:
            param = parsed.params.max_tokens_field if prompt_len < context_len else "prompt"
            raise ApiError.too_long(context_len, prompt_len, wanted, param)
        return wanted or min(handler.default_max_tokens or context_len, context_len - prompt_len)


Answer: TypeAlias = Callable[[bytes, Send, RequestStats], Coroutine[Any, Any, None]]
"""Answers a request with this body. An error before the first byte is sent may be raised."""


def as_api_error(error: Exception) -> ApiError:
    """The error that a client sees. Unexpected errors are logged, and the client learns no details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UnsupportedRequestError):
        return ApiError.invalid(str(error), code="unsupported_value")
    log.error("a request failed", exc_info=error)
    return ApiError.internal()
