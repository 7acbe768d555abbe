"""All parts of an endpoint around one gateway, and the way from a request's bytes to a job."""

import asyncio
import logging
import time
from collections.abc import Callable

from serving.core.keyed_random import key
from serving.frontend.openai.admission import Line, Running
from serving.frontend.openai.answers import Answers, Job
from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.gateway import Conversations, Gateway, RefusedError
from serving.frontend.openai.metrics import Metrics
from serving.frontend.openai.options import Endpoint
from serving.frontend.openai.request_handlers import Asked, Form
from serving.frontend.openai.schema import parse
from serving.frontend.routing_api.sessions import Handles, Sessions

log = logging.getLogger(__name__)


class Service:
    """`clock` tells seconds for TTFT and TBT."""

    def __init__(self, endpoint: Endpoint, gateway: Gateway, clock: Callable[[], float] = time.perf_counter) -> None:
        self.endpoint, self.gateway, self.clock = endpoint, gateway, clock
        self.line = Line(endpoint.queue, endpoint.retry_after_s)
        self.conversations = Conversations(endpoint.conversations, gateway.forget)
        self.running = Running()
        self.answers = Answers(gateway, self.line, self.conversations, clock)
        self.metrics = Metrics(gateway, self.line, self.running)
        self.handles = Handles()
        self.routes = Sessions(endpoint.routing.sessions, gateway.forget)
        self._asked = 0

    @property
    def model(self) -> str:
        return self.endpoint.model or self.gateway.model

    @property
    def unready(self) -> str:
        """Why nothing is answered now; empty when all is well."""
        if self.running.stopping:
            return "this device is shutting down"
        if self.gateway.ready:
            return ""
        if self.gateway.cloud:
            return "this device's models are not loaded yet"
        return "the cloud cannot be reached, and this device's policy does not answer without it"

    def known(self, model: str) -> None:
        """Raises ApiError (404) for another model than the one served."""
        if model != self.model:
            message = f"the model {model!r} does not exist here; this device serves {self.model!r}"
            raise ApiError(404, message, "model_not_found", "model")

    async def read(self, form: Form, raw: bytes) -> tuple[Asked, Job]:
        """A request's bytes as tokens to ask for. Raises ApiError."""
        if self.unready:
            raise ApiError(503, self.unready, "not_ready")
        self._asked += 1
        seed = key(self.endpoint.seed, f"request {self._asked}") >> 1
        asked = form.parse(parse(raw), self.endpoint.temperature, seed)
        self.known(asked.question.model)
        prompts = await asyncio.to_thread(form.encode, asked, self.gateway.tokenizer)
        limits = [self._limit(form, asked, len(prompt)) for prompt in prompts]
        stops = asked.question.stop + form.stops(self.gateway.tokenizer)
        return asked, Job(prompts, limits, asked.question.sampling, stops)

    def _limit(self, form: Form, asked: Asked, prompt: int) -> int:
        """How many tokens are written at most: what is asked for must fit, what is not need not."""
        context, wanted = self.gateway.context, asked.question.limit
        if prompt >= context or prompt + (wanted or 0) > context:
            param = asked.question.limit_name if prompt < context else "prompt"
            raise ApiError.too_long(context, prompt, wanted, param)
        return wanted or min(form.limit or context, context - prompt)


def as_api_error(error: Exception) -> ApiError:
    """What a client is told; what it cannot know goes to the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RefusedError):
        return ApiError.invalid(str(error), code="unsupported_value")
    log.error("a request failed", exc_info=error)
    return ApiError.internal()
