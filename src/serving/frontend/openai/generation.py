"""The generation URLs: one request from its bytes to the last event, and the JSON of its response."""

import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from serving.frontend.openai.metrics import RequestStats
from serving.frontend.openai.request_handlers import Choice, ParsedRequest, RequestHandler
from serving.frontend.openai.service import EndpointService, TextDelta, as_api_error

SSE_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class GenerationEndpoint:
    """An ASGI application for the requests of one handler."""

    def __init__(self, service: EndpointService, handler: RequestHandler) -> None:
        self.service, self.handler = service, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(raw: bytes, send_in_time: Send, stats: RequestStats) -> None:
            await self._answer(raw, _ClientStream(scope, receive, send_in_time, stats))

        await self.service.serve(self.handler.name, scope, receive, send, answer)

    async def _answer(self, raw: bytes, client: "_ClientStream") -> None:
        parsed, job = await self.service.parse_request(self.handler, raw)
        response = self._response(parsed, len(job.prompts))
        answer = self.service.running.stream(self.service.answer_generator.generate(job, client.stats))
        async with aclosing(answer) as deltas:
            if not parsed.params.stream:
                await client.send_full(await response.full_response(deltas, client.stats))
                return
            await client.start(await anext(deltas), response)
            try:
                async for delta in deltas:
                    await client.send_delta(delta, response)
                await client.finish(response)
            except Exception as error:
                await client.abort(error)

    def _response(self, parsed: ParsedRequest, num_choices: int) -> "ResponseBuilder":
        name = f"{self.handler.id_prefix}-{secrets.token_hex(12)}"
        return ResponseBuilder(
            self.handler, name, int(time.time()), self.service.model_name, num_choices, parsed.params.include_usage
        )


@dataclass(frozen=True)
class ResponseBuilder:
    """The JSON of one response, whole or as the chunks of a stream."""

    handler: RequestHandler
    id: str
    created: int
    model: str
    num_choices: int
    include_usage: bool

    async def full_response(self, deltas: AsyncIterator[TextDelta], stats: RequestStats) -> dict[str, Any]:
        texts, choices = [""] * self.num_choices, []
        async for delta in deltas:
            texts[delta.index] += delta.text
            if delta.finish_reason:
                choices.append(self.handler.choice(delta.index, texts[delta.index], delta.finish_reason))
        extra = {"usage": stats.usage, "tandem": stats.extension}
        return self._envelope(self.handler.object_name, choices) | extra

    def opening_chunks(self, index: int) -> list[dict[str, Any]]:
        choice = self.handler.opening_choice(index)
        return [self._chunk([choice])] if choice else []

    def chunks(self, delta: TextDelta, stats: RequestStats) -> list[dict[str, Any]]:
        """A chunk for the text and one for the finish reason; the last answer's also carries the `tandem` extension."""
        found = [self._chunk([self.handler.delta_choice(delta.index, delta.text, None)])] if delta.text else []
        if delta.finish_reason:
            last = self._chunk([self.handler.delta_choice(delta.index, "", delta.finish_reason)])
            found.append(last | {"tandem": stats.extension} if delta.index == self.num_choices - 1 else last)
        return found

    def closing_chunks(self, stats: RequestStats) -> list[dict[str, Any]]:
        return [self._chunk([]) | {"usage": stats.usage}] if self.include_usage else []

    def _chunk(self, choices: list[Choice]) -> dict[str, Any]:
        usage = {"usage": None} if self.include_usage else {}
        return self._envelope(self.handler.chunk_name, choices) | usage

    def _envelope(self, object_name: str, choices: list[Choice]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": object_name,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


class _ClientStream:
    """Sends one response, and records its outcome in `stats` before the last byte."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, stats: RequestStats) -> None:
        self._scope, self._receive, self._send, self.stats = scope, receive, send, stats
        self._last_opened = -1

    async def send_full(self, body: dict[str, Any]) -> None:
        self.stats.outcome = body["choices"][-1]["finish_reason"]
        await JSONResponse(body)(self._scope, self._receive, self._send)

    async def start(self, delta: TextDelta, response: ResponseBuilder) -> None:
        """Sends status 200 and the first text; from here on an error can only be an event."""
        await self._send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        await self.send_delta(delta, response)

    async def send_delta(self, delta: TextDelta, response: ResponseBuilder) -> None:
        chunks = response.chunks(delta, self.stats)
        if delta.index > self._last_opened:
            self._last_opened, chunks = delta.index, response.opening_chunks(delta.index) + chunks
        if delta.finish_reason and delta.index == response.num_choices - 1:
            self.stats.outcome = delta.finish_reason
        await self._send_events(*chunks)

    async def finish(self, response: ResponseBuilder) -> None:
        await self._send_events(*response.closing_chunks(self.stats), "[DONE]", more=False)

    async def abort(self, error: Exception) -> None:
        refusal = as_api_error(error)
        self.stats.outcome = refusal.code or "error"
        await self._send_events(refusal.body, more=False)

    async def _send_events(self, *data: dict[str, Any] | str, more: bool = True) -> None:
        """Sends all events in one network write."""
        await self._send({"type": "http.response.body", "body": b"".join(map(sse_event, data)), "more_body": more})


def sse_event(data: dict[str, Any] | str) -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()
