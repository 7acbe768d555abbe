"""All parts of an endpoint around one gateway, and the way from a request's bytes to a job."""

import asyncio
import logging
import time
from collections.abc import Callable

from serving.core.keyed_random import key
from serving.frontend.openai.admission import AdmissionQueue, RunningRequests
from serving.frontend.openai.answers import AnswerGenerator, GenerationJob
from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.gateway import Gateway, PrefixIndex, UnsupportedRequestError
from serving.frontend.openai.metrics import EndpointMetrics
from serving.frontend.openai.options import EndpointOptions
from serving.frontend.openai.request_handlers import ParsedRequest, RequestHandler
from serving.frontend.openai.schema import parse_body
from serving.frontend.routing_api.sessions import RoutingSessions, StateHandles

log = logging.getLogger(__name__)


class EndpointService:
    """`clock` tells seconds for TTFT and TBT."""

    def __init__(
        self, options: EndpointOptions, gateway: Gateway, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.options, self.gateway, self.clock = options, gateway, clock
        self.queue = AdmissionQueue(options.max_waiting, options.retry_after_s)
        self.prefix_index = PrefixIndex(options.cached_conversations, gateway.release)
        self.running = RunningRequests()
        self.answer_generator = AnswerGenerator(gateway, self.queue, self.prefix_index, clock)
        self.metrics = EndpointMetrics(gateway, self.queue, self.running)
        self.state_handles = StateHandles()
        self.routing_sessions = RoutingSessions(options.routing.cached_sessions, gateway.release)
        self._num_requests = 0

    @property
    def model_name(self) -> str:
        return self.options.model_name or self.gateway.model_name

    @property
    def unready_reason(self) -> str:
        """Why nothing is answered now; empty when all is well."""
        if self.running.stopping:
            return "this device is shutting down"
        if self.gateway.ready:
            return ""
        if self.gateway.cloud_reachable:
            return "this device's models are not loaded yet"
        return "the cloud cannot be reached, and this device's policy does not answer without it"

    def check_model(self, model: str) -> None:
        """Raises ApiError (404) for another model than the one served."""
        if model != self.model_name:
            message = f"the model {model!r} does not exist here; this device serves {self.model_name!r}"
            raise ApiError(404, message, "model_not_found", "model")

    async def parse_request(self, handler: RequestHandler, raw: bytes) -> tuple[ParsedRequest, GenerationJob]:
        """A request's bytes as tokens to ask for. Raises ApiError."""
        if self.unready_reason:
            raise ApiError(503, self.unready_reason, "not_ready")
        self._num_requests += 1
        seed = key(self.options.seed, f"request {self._num_requests}") >> 1
        asked = handler.parse(parse_body(raw), self.options.default_temperature, seed)
        self.check_model(asked.params.model)
        prompts = await asyncio.to_thread(handler.encode, asked, self.gateway.tokenizer)
        limits = [self._max_new_tokens(handler, asked, len(prompt)) for prompt in prompts]
        stops = asked.params.stop_strings + handler.stop_strings(self.gateway.tokenizer)
        return asked, GenerationJob(prompts, limits, asked.params.sampling, stops)

    def _max_new_tokens(self, handler: RequestHandler, parsed: ParsedRequest, prompt_len: int) -> int:
        """How many tokens are written at most: what is asked for must fit, what is not need not."""
        context, wanted = self.gateway.context_len, parsed.params.max_tokens
        if prompt_len >= context or prompt_len + (wanted or 0) > context:
            param = parsed.params.max_tokens_field if prompt_len < context else "prompt"
            raise ApiError.too_long(context, prompt_len, wanted, param)
        return wanted or min(handler.default_max_tokens or context, context - prompt_len)


def as_api_error(error: Exception) -> ApiError:
    """What a client is told; what it cannot know goes to the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UnsupportedRequestError):
        return ApiError.invalid(str(error), code="unsupported_value")
    log.error("a request failed", exc_info=error)
    return ApiError.internal()
