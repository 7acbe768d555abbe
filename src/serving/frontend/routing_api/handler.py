"""POST /v1/route: the routing API's URL, in the endpoint's line, bounds, errors and metrics."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from serving.frontend.openai.access import CLIENT
from serving.frontend.openai.access import read as read_body
from serving.frontend.openai.admission import StalledError, patient, while_present
from serving.frontend.openai.detokenizer import Writing
from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.gateway import Conversation
from serving.frontend.openai.metrics import Tally
from serving.frontend.openai.request_handlers import Finish
from serving.frontend.openai.service import Service, as_api_error
from serving.frontend.routing_api.decision import Decision, decide
from serving.frontend.routing_api.schema import Asked, Reply, read
from serving.messages import Origin, Routing

if TYPE_CHECKING:
    from serving.policy.slots.routed_offload import Routed

Tokens = tuple[int, ...]

UNCHECKED: frozenset[Origin] = frozenset(("device", "offline"))
"""Tokens that the small model wrote and the large one never saw; accepted drafts are what it would have written."""


@dataclass(frozen=True, slots=True)
class Written:
    """By the large model."""

    tokens: Tokens
    text: str
    finish: Finish | None


NOTHING = Written((), "", None)


class Decisions:
    """An ASGI application. The large model writes by the policy's own way: a call of which everything is routed."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint, tally = self.service.endpoint, Tally(self.service.clock())
        send = patient(send, endpoint.stall_s)

        async def answered() -> None:
            reply = await self._reply(raw, scope.get(CLIENT, ""), tally)
            tally.outcome = reply.route.lower()
            await JSONResponse(dict(reply.body))(scope, receive, send)

        try:
            raw = await read_body(Request(scope, receive), endpoint.max_body_nbytes, endpoint.body_s)
            await while_present(receive, answered())
        except ClientDisconnect:
            pass
        except StalledError:
            tally.outcome = "stalled"
        except Exception as error:
            refusal = as_api_error(error)
            tally.outcome = refusal.code or "error"
            await refusal.response()(scope, receive, send)
        finally:
            self.service.metrics.finished("route", tally)

    async def _reply(self, raw: bytes, client: str, tally: Tally) -> Reply:
        routed = self._routed()
        asked = read(raw)
        if asked.model is not None:
            self.service.known(asked.model)
        context = await asyncio.to_thread(self._tokens, asked.context)
        limit = self._limit(asked, len(context))
        service = self.service
        found = decide(asked, context, routed, service.endpoint.routing, service.handles, client)
        if found.route == "SLM":
            return _reply(asked, found, NOTHING, None)
        async with aclosing(service.running.follow(self._written(asked, context, limit, client, tally))) as items:
            written = await anext(items)
        handle = service.handles.issue(client, asked.session, context + written.tokens)
        return _reply(asked, found, written, handle)

    def _routed(self) -> "Routed":
        """Raises ApiError (404), where the policy routes no tokens; 503, where nothing is answered now."""
        found = self.service.gateway.routed
        if found is None:
            message = f"the policy {self.service.model!r} routes no tokens, so there is nothing to decide here"
            raise ApiError(404, message, "no_router")
        if self.service.unready:
            raise ApiError(503, self.service.unready, "not_ready")
        return found

    def _tokens(self, context: str) -> Tokens:
        found = tuple(self.service.gateway.tokenizer.hf(context)["input_ids"])
        if not found:
            raise ApiError.invalid("context has no token; give a text", "context")
        return found

    def _limit(self, asked: Asked, context: int) -> int:
        most = self.service.endpoint.routing.tokens
        limit = asked.tokens or 1
        if limit > most:
            raise ApiError.invalid(f"max_tokens is {limit}; this server writes at most {most} a question", "max_tokens")
        if context + limit > self.service.gateway.context:
            raise ApiError.too_long(self.service.gateway.context, context, limit, "context")
        return limit

    async def _written(
        self, asked: Asked, context: Tokens, limit: int, client: str, tally: Tally
    ) -> AsyncGenerator[Written, None]:
        """One item: what the large model wrote. Raises ApiError, where it did not write all of it."""
        service, owner = self.service, (client, asked.session)
        async with service.line.turn():
            tally.begin(len(context))
            conversation = service.routes.take(owner, context)
            try:
                written = await self._call(context, limit, conversation, tally)
            except BaseException:
                service.routes.drop(conversation)
                raise
            service.routes.park(owner, conversation, context, written.tokens)
        yield written

    async def _call(self, context: Tokens, limit: int, conversation: Conversation | None, tally: Tally) -> Written:
        gateway, text = self.service.gateway, ""
        writing = Writing(gateway.tokenizer, (), lambda origin: tally.count(origin, self.service.clock()))
        async with aclosing(gateway.ask(context, limit, None, conversation, Routing(large_only=True))) as pieces:
            async for piece in pieces:
                tally.cached += piece.cached
                if UNCHECKED & set(piece.origins):  # the device went on alone
                    raise ApiError.failed(False)
                text += writing.write(piece)
        if not writing.finish:
            raise ApiError.failed(gateway.cloud)
        return Written(tuple(writing.tokens), text, writing.finish)


def _reply(asked: Asked, found: Decision, written: Written, handle: str | None) -> Reply:
    return Reply(
        found.route, found.score, found.threshold, written.tokens, written.text, written.finish, handle, asked.session,
        asked.request, found.reasons,
    )  # fmt: skip
