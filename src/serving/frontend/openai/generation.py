"""A request for text, from its bytes to the last event; one instance a URL."""

import secrets
import time
from contextlib import aclosing
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from serving.frontend.openai.access import read_body
from serving.frontend.openai.admission import ClientStalledError, cancel_on_disconnect, with_send_timeout
from serving.frontend.openai.answers import ResponseBuilder, TextDelta, sse_event
from serving.frontend.openai.metrics import RequestStats
from serving.frontend.openai.request_handlers import ParsedRequest, RequestHandler
from serving.frontend.openai.service import EndpointService, as_api_error

SSE_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class GenerationEndpoint:
    """An ASGI application for one form of request."""

    def __init__(self, service: EndpointService, handler: RequestHandler) -> None:
        self.service, self.handler = service, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint, tally = self.service.options, RequestStats(self.service.clock())
        client = _ClientStream(scope, receive, with_send_timeout(send, endpoint.stall_timeout_s), tally)
        try:
            raw = await read_body(Request(scope, receive), endpoint.max_body_nbytes, endpoint.body_timeout_s)
            await cancel_on_disconnect(receive, self._answer(raw, client))
        except ClientDisconnect:
            pass  # its request ended with it: there is nobody to answer
        except ClientStalledError:
            tally.outcome = "stalled"  # the server closes the connection, since the response is not complete
        except Exception as error:
            await client.send_error(error)
        finally:
            self.service.metrics.record(self.handler.name, tally)

    async def _answer(self, raw: bytes, client: "_ClientStream") -> None:
        asked, job = await self.service.parse_request(self.handler, raw)
        reply = self._response(asked, len(job.prompts))
        answer = self.service.running.stream(self.service.answer_generator.generate(job, client.stats))
        async with aclosing(answer) as parts:
            if not asked.params.stream:
                await client.send_full(await reply.full_response(parts, client.stats))
                return
            await client.start(await anext(parts), reply)
            try:
                async for part in parts:
                    await client.send_delta(part, reply)
                await client.finish(reply)
            except ClientStalledError:
                raise
            except Exception as error:
                await client.abort(error)

    def _response(self, parsed: ParsedRequest, num_choices: int) -> ResponseBuilder:
        name = f"{self.handler.id_prefix}-{secrets.token_hex(12)}"
        return ResponseBuilder(
            self.handler, name, int(time.time()), self.service.model_name, num_choices, parsed.params.include_usage
        )


class _ClientStream:
    """What is sent to one client; the tally learns the outcome before the last byte goes."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, stats: RequestStats) -> None:
        self._scope, self._receive, self._send, self.stats = scope, receive, send, stats
        self._last_opened = -1

    async def send_full(self, body: dict[str, Any]) -> None:
        self.stats.outcome = body["choices"][-1]["finish_reason"]
        await JSONResponse(body)(self._scope, self._receive, self._send)

    async def send_error(self, error: Exception) -> None:
        """An error before anything was sent."""
        refusal = as_api_error(error)
        self.stats.outcome = refusal.code or "error"
        await refusal.response()(self._scope, self._receive, self._send)

    async def start(self, part: TextDelta, response: ResponseBuilder) -> None:
        """The first text is there, so nothing can be refused any more."""
        await self._send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        await self.send_delta(part, response)

    async def send_delta(self, part: TextDelta, response: ResponseBuilder) -> None:
        chunks = response.chunks(part, self.stats)
        if part.index > self._last_opened:
            self._last_opened, chunks = part.index, response.opening_chunks(part.index) + chunks
        if part.finish_reason and part.index == response.num_choices - 1:
            self.stats.outcome = part.finish_reason
        await self._send_events(*chunks)

    async def finish(self, response: ResponseBuilder) -> None:
        await self._send_events(*response.closing_chunks(self.stats), "[DONE]", more=False)

    async def abort(self, error: Exception) -> None:
        refusal = as_api_error(error)
        self.stats.outcome = refusal.code or "error"
        await self._send_events(refusal.body, more=False)

    async def _send_events(self, *data: dict[str, Any] | str, more: bool = True) -> None:
        """One network write for what is known at once; none for nothing, but for the end."""
        await self._send({"type": "http.response.body", "body": b"".join(map(sse_event, data)), "more_body": more})
