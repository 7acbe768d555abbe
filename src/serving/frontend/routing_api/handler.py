"""POST /v1/route: decides which model writes the next tokens, and lets the large one write in the endpoint's queue."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse
from starlette.routing import Route as UrlRoute
from starlette.types import Receive, Scope, Send

from serving.frontend.openai.detokenizer import AnswerWriter
from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.gateway import Conversation
from serving.frontend.openai.http import CLIENT_SCOPE_KEY
from serving.frontend.openai.metrics import RequestStats
from serving.frontend.openai.options import RoutingLimits
from serving.frontend.openai.request_handlers import FinishReason
from serving.frontend.openai.service import EndpointService
from serving.frontend.routing_api.schema import Route, RoutingRequest, RoutingResponse, parse_request
from serving.frontend.routing_api.sessions import RoutingSessions, StateHandles
from serving.messages import Origin, RoutingOptions, TokenIds

if TYPE_CHECKING:
    from serving.policy.slots.routed_offload import RoutedOffload


def routing_routes(service: EndpointService) -> Sequence[UrlRoute]:
    """The URLs of the routing API, to be mounted on the endpoint of `service`."""
    return (UrlRoute("/v1/route", RoutingEndpoint(service), methods=["POST"]),)


# The decision.


@dataclass(frozen=True)
class RoutingDecision:
    route: Route
    score: float
    threshold: float
    reasons: tuple[str, ...]


def decide(
    request: RoutingRequest,
    context: TokenIds,
    routed: "RoutedOffload",
    limits: RoutingLimits,
    handles: StateHandles,
    client: str,
) -> RoutingDecision:
    """Decides by the served policy's router and the hidden state alone; other claims of the client change nothing.

    `context` is the request's text, tokenized by this server. Raises ApiError (400) for a state that the router cannot
    read.
    """
    router = routed.scorer
    if len(request.hidden_state) != router.num_features:
        name = "slm_state.hidden_states"
        message = f"{name} is {len(request.hidden_state)} wide; this server's router reads {router.num_features}"
        raise ApiError.invalid(message, name)
    score = router.probability(request.hidden_state)
    if not isfinite(score):
        name = "slm_state.hidden_states"
        raise ApiError.invalid(f"{name} has no score: its numbers are too large for the router", name)
    threshold = limits.clamp_threshold(request.threshold, routed.effective_threshold)
    beyond = router.routes(score, threshold)
    reasons = [f"score {score:.4f} is {'' if beyond else 'not '}{router.side} the threshold {threshold:g}"]
    if routed.mode == "small_only":
        reasons.append("this server routes nothing now (mode small_only)")
    if request.threshold is not None and threshold != request.threshold:
        bounds = f"{limits.min_threshold:g} to {limits.max_threshold:g}"
        reasons.append(f"routing_threshold {request.threshold:g} was moved into {bounds}")
    reasons += _ignored_fields(request, context, handles, client)
    route: Route = "LLM" if beyond and routed.mode == "joint" else "SLM"
    return RoutingDecision(route, score, threshold, tuple(reasons))


def _ignored_fields(request: RoutingRequest, context: TokenIds, handles: StateHandles, client: str) -> list[str]:
    """Reasons that name the fields that contradict the context."""
    found = []
    if request.state_handle and (why := handles.mismatch(request.state_handle, client, request.session_id, context)):
        found.append(f"llm_state was ignored: {why}")
    if (at := _first_mismatch(request)) is not None:
        found.append(f"history was ignored: its token {at} is not in the context behind those before it")
    if request.token_index != len(context):
        found.append(f"token_index was ignored: the context is {len(context)} tokens here")
    return found


def _first_mismatch(request: RoutingRequest) -> int | None:
    """Index of the first history token that the context does not contain in this order; None if it contains all."""
    position = 0
    for i, past in enumerate(request.history):
        at = request.context.find(past.token, position)
        if at < 0:
            return i
        position = at + len(past.token)
    return None


# The URL.

UNVERIFIED: frozenset[Origin] = frozenset(("device", "offline"))
"""Tokens of the small model that the large model did not verify."""


@dataclass(frozen=True, slots=True)
class LlmOutput:
    """What the large model wrote."""

    tokens: TokenIds
    text: str
    finish_reason: FinishReason | None


NO_OUTPUT = LlmOutput((), "", None)


class RoutingEndpoint:
    """An ASGI application. The large model writes through the gateway, by a request whose every token is routed."""

    def __init__(self, service: EndpointService) -> None:
        self.service, self.state_handles = service, StateHandles()
        self.sessions = RoutingSessions(service.options.routing.cached_sessions, service.gateway.release)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(raw: bytes, send_in_time: Send, stats: RequestStats) -> None:
            response = await self._respond(raw, scope.get(CLIENT_SCOPE_KEY, ""), stats)
            stats.outcome = response.route.lower()
            await JSONResponse(dict(response.body))(scope, receive, send_in_time)

        await self.service.serve("route", scope, receive, send, answer)

    async def _respond(self, raw: bytes, client: str, stats: RequestStats) -> RoutingResponse:
        service, routed = self.service, self._routed_offload()
        request = parse_request(raw)
        if request.model is not None:
            service.check_model(request.model)
        context = await asyncio.to_thread(self._tokenize, request.context)
        max_tokens = self._max_tokens(request, len(context))
        decision = decide(request, context, routed, service.options.routing, self.state_handles, client)
        if decision.route == "SLM":
            return _response(request, decision, NO_OUTPUT, None)
        async with aclosing(
            service.running.stream(self._generate(request, context, max_tokens, client, stats))
        ) as outputs:
            output = await anext(outputs)
        handle = self.state_handles.issue(client, request.session_id, context + output.tokens)
        return _response(request, decision, output, handle)

    def _routed_offload(self) -> "RoutedOffload":
        """Raises ApiError: 404 if the policy routes no tokens, 503 if the endpoint is not ready."""
        found = self.service.gateway.routed
        if found is None:
            message = f"the policy {self.service.model_name!r} routes no tokens, so there is nothing to decide here"
            raise ApiError(404, message, "no_router")
        if self.service.unready_reason:
            raise ApiError(503, self.service.unready_reason, "not_ready")
        return found

    def _tokenize(self, context: str) -> TokenIds:
        found = tuple(self.service.gateway.tokenizer.hf(context)["input_ids"])
        if not found:
            raise ApiError.invalid("context has no token; give a text", "context")
        return found

    def _max_tokens(self, request: RoutingRequest, prompt_len: int) -> int:
        most, context_len = self.service.options.routing.max_tokens, self.service.gateway.context_len
        wanted = request.max_tokens or 1
        if wanted > most:
            message = f"max_tokens is {wanted}; this server writes at most {most} a request"
            raise ApiError.invalid(message, "max_tokens")
        if prompt_len + wanted > context_len:
            raise ApiError.too_long(context_len, prompt_len, wanted, "context")
        return wanted

    async def _generate(
        self, request: RoutingRequest, context: TokenIds, max_tokens: int, client: str, stats: RequestStats
    ) -> AsyncGenerator[LlmOutput, None]:
        """Yields one output. Raises ApiError if the large model did not write all of it."""
        owner = client, request.session_id
        async with self.service.queue.admit():
            stats.begin_prompt(len(context))
            conversation = self.sessions.acquire(owner, context)
            try:
                output = await self._run_llm(context, max_tokens, conversation, stats)
            except BaseException:
                self.sessions.discard(conversation)
                raise
            self.sessions.store(owner, conversation, context, output.tokens)
        yield output

    async def _run_llm(
        self, context: TokenIds, max_tokens: int, conversation: Conversation | None, stats: RequestStats
    ) -> LlmOutput:
        gateway, text = self.service.gateway, ""
        writer = AnswerWriter(gateway.tokenizer, (), lambda origin: stats.count_token(origin, self.service.clock()))
        deltas = gateway.generate(context, max_tokens, None, conversation, RoutingOptions(large_only=True))
        async with aclosing(deltas):
            async for delta in deltas:
                stats.cached_tokens += delta.cached_tokens
                if UNVERIFIED & set(delta.origins):  # the device wrote without its cloud
                    raise ApiError.failed(False)
                text += writer.add(delta)
        if not writer.finish_reason:
            raise ApiError.failed(gateway.cloud_reachable)
        return LlmOutput(tuple(writer.tokens), text, writer.finish_reason)


def _response(
    request: RoutingRequest, decision: RoutingDecision, output: LlmOutput, handle: str | None
) -> RoutingResponse:
    return RoutingResponse(
        route=decision.route,
        score=decision.score,
        threshold=decision.threshold,
        tokens=output.tokens,
        text=output.text,
        finish_reason=output.finish_reason,
        state_handle=handle,
        session_id=request.session_id,
        request_id=request.request_id,
        reasons=decision.reasons,
    )
