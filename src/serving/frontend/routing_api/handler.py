"""POST /v1/route: the routing API's URL, in the endpoint's line, bounds, errors and metrics."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from serving.frontend.openai.access import CLIENT_SCOPE_KEY
from serving.frontend.openai.access import read_body as read_body
from serving.frontend.openai.admission import ClientStalledError, cancel_on_disconnect, with_send_timeout
from serving.frontend.openai.detokenizer import AnswerWriter
from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.gateway import Conversation
from serving.frontend.openai.metrics import RequestStats
from serving.frontend.openai.request_handlers import FinishReason
from serving.frontend.openai.service import EndpointService, as_api_error
from serving.frontend.routing_api.decision import RoutingDecision, decide
from serving.frontend.routing_api.schema import RoutingRequest, RoutingResponse, parse_request
from serving.messages import Origin, RoutingOptions

if TYPE_CHECKING:
    from serving.policy.slots.routed_offload import RoutedOffload

TokenIds = tuple[int, ...]

UNVERIFIED: frozenset[Origin] = frozenset(("device", "offline"))
"""Tokens that the small model wrote and the large one never saw; accepted drafts are what it would have written."""


@dataclass(frozen=True, slots=True)
class LlmOutput:
    """By the large model."""

    tokens: TokenIds
    text: str
    finish_reason: FinishReason | None


NO_OUTPUT = LlmOutput((), "", None)


class RoutingEndpoint:
    """An ASGI application. The large model writes by the policy's own way: a call of which everything is routed."""

    def __init__(self, service: EndpointService) -> None:
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint, tally = self.service.options, RequestStats(self.service.clock())
        send = with_send_timeout(send, endpoint.stall_timeout_s)

        async def answered() -> None:
            reply = await self._respond(raw, scope.get(CLIENT_SCOPE_KEY, ""), tally)
            tally.outcome = reply.route.lower()
            await JSONResponse(dict(reply.body))(scope, receive, send)

        try:
            raw = await read_body(Request(scope, receive), endpoint.max_body_nbytes, endpoint.body_timeout_s)
            await cancel_on_disconnect(receive, answered())
        except ClientDisconnect:
            pass
        except ClientStalledError:
            tally.outcome = "stalled"
        except Exception as error:
            refusal = as_api_error(error)
            tally.outcome = refusal.code or "error"
            await refusal.response()(scope, receive, send)
        finally:
            self.service.metrics.record("route", tally)

    async def _respond(self, raw: bytes, client: str, stats: RequestStats) -> RoutingResponse:
        routed = self._routed_offload()
        asked = parse_request(raw)
        if asked.model is not None:
            self.service.check_model(asked.model)
        context = await asyncio.to_thread(self._tokens, asked.context)
        limit = self._max_tokens(asked, len(context))
        service = self.service
        found = decide(asked, context, routed, service.options.routing, service.state_handles, client)
        if found.route == "SLM":
            return _response(asked, found, NO_OUTPUT, None)
        async with aclosing(service.running.stream(self._generate(asked, context, limit, client, stats))) as items:
            written = await anext(items)
        handle = service.state_handles.issue(client, asked.session_id, context + written.tokens)
        return _response(asked, found, written, handle)

    def _routed_offload(self) -> "RoutedOffload":
        """Raises ApiError (404), where the policy routes no tokens; 503, where nothing is answered now."""
        found = self.service.gateway.routed
        if found is None:
            message = f"the policy {self.service.model_name!r} routes no tokens, so there is nothing to decide here"
            raise ApiError(404, message, "no_router")
        if self.service.unready_reason:
            raise ApiError(503, self.service.unready_reason, "not_ready")
        return found

    def _tokens(self, context: str) -> TokenIds:
        found = tuple(self.service.gateway.tokenizer.hf(context)["input_ids"])
        if not found:
            raise ApiError.invalid("context has no token; give a text", "context")
        return found

    def _max_tokens(self, request: RoutingRequest, context_len: int) -> int:
        most = self.service.options.routing.max_tokens
        limit = request.max_tokens or 1
        if limit > most:
            raise ApiError.invalid(f"max_tokens is {limit}; this server writes at most {most} a question", "max_tokens")
        if context_len + limit > self.service.gateway.context_len:
            raise ApiError.too_long(self.service.gateway.context_len, context_len, limit, "context")
        return limit

    async def _generate(
        self, request: RoutingRequest, context: TokenIds, limit: int, client: str, stats: RequestStats
    ) -> AsyncGenerator[LlmOutput, None]:
        """One item: what the large model wrote. Raises ApiError, where it did not write all of it."""
        service, owner = self.service, (client, request.session_id)
        async with service.queue.admit():
            stats.begin_prompt(len(context))
            conversation = service.routing_sessions.acquire(owner, context)
            try:
                written = await self._run_llm(context, limit, conversation, stats)
            except BaseException:
                service.routing_sessions.discard(conversation)
                raise
            service.routing_sessions.store(owner, conversation, context, written.tokens)
        yield written

    async def _run_llm(
        self, context: TokenIds, limit: int, conversation: Conversation | None, stats: RequestStats
    ) -> LlmOutput:
        gateway, text = self.service.gateway, ""
        writing = AnswerWriter(gateway.tokenizer, (), lambda origin: stats.count_token(origin, self.service.clock()))
        async with aclosing(
            gateway.generate(context, limit, None, conversation, RoutingOptions(large_only=True))
        ) as pieces:
            async for piece in pieces:
                stats.cached_tokens += piece.cached_tokens
                if UNVERIFIED & set(piece.origins):  # the device went on alone
                    raise ApiError.failed(False)
                text += writing.add(piece)
        if not writing.finish_reason:
            raise ApiError.failed(gateway.cloud_reachable)
        return LlmOutput(tuple(writing.tokens), text, writing.finish_reason)


def _response(
    request: RoutingRequest, decision: RoutingDecision, output: LlmOutput, handle: str | None
) -> RoutingResponse:
    return RoutingResponse(
        decision.route, decision.score, decision.threshold, output.tokens, output.text, output.finish_reason, handle, request.session_id,
        request.request_id, decision.reasons,
    )  # fmt: skip
