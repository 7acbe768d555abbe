"""The page's URLs: its files, what it is about, and runs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.frontend.openai.access import OPEN, Keyed
from serving.frontend.openai.app import refused, told
from serving.frontend.openai.body import read
from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.generation import HEADERS
from serving.frontend.openai.host_guard import HostGuard
from serving.frontend.openai.presence import StalledError, patient, while_present
from serving.frontend.openai.running import Running
from serving.frontend.openai.service import as_api_error
from serving.frontend.ui import files
from serving.frontend.ui.about import about
from serving.frontend.ui.device_pool import Seats
from serving.frontend.ui.headers import WithHeaders
from serving.frontend.ui.question import Question, question
from serving.frontend.ui.run import Event, lines
from serving.frontend.ui.stage import Stage
from serving.workload.encoding import encode

_ANY = 1 << 62
"""Tokens: whether a prompt is too long is for the context to say."""


def app(stage: Stage, running: Running, key: str | None) -> ASGIApp:
    """An ASGI application; `key` is what whoever asks must show, None for none. The files themselves are open."""
    said = about(stage.show)

    async def tell(_: Request) -> Response:
        return JSONResponse(said)

    async def healthz(_: Request) -> Response:
        return JSONResponse({"alive": True})

    routes = [
        *files.routes(),
        Route("/api/about", tell, methods=["GET"]),
        Route("/api/runs", Runs(stage, running), methods=["POST"]),
        Route("/healthz", healthz, methods=["GET"]),
    ]
    inner = Starlette(routes=routes, exception_handlers={HTTPException: refused, ApiError: told})
    keyed = Keyed(inner, key, OPEN | files.static().keys())
    return WithHeaders(HostGuard(keyed, stage.show.service.page))


class Runs:
    """An ASGI application: a question in, events out (text/event-stream). A client that leaves ends its run."""

    def __init__(self, stage: Stage, running: Running) -> None:
        page = stage.show.service.page
        self._stage, self._running, self._page = stage, running, page
        self._seats = Seats(stage.show.devices, page.queue, page.retry_after_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        send = patient(send, self._page.stall_s)
        try:
            raw = await read(Request(scope, receive), self._page.max_body_nbytes, self._page.body_s)
            await while_present(receive, self._answer(raw, send))
        except (ClientDisconnect, StalledError):
            pass  # nobody is there to be told
        except Exception as problem:
            await as_api_error(problem).response()(scope, receive, send)

    async def _answer(self, raw: bytes, send: Send) -> None:
        """What is refused before the first event has a status of its own, what breaks later is an event."""
        asked = question(raw, self._stage.show.offers, self._page.max_tokens, self._stage.show.new_tokens)
        prompt = await asyncio.to_thread(self._encoded, asked)
        self._check(asked, prompt)
        async with aclosing(self._running.follow(self._events(asked, prompt))) as found:
            first = await anext(found)
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await _say(send, first)
            try:
                async for events in found:
                    await _say(send, events)
            except StalledError:
                raise
            except Exception as problem:
                await _say(send, [("error", {"message": as_api_error(problem).message})])
            await _say(send, [], more=False)

    async def _events(self, asked: Question, prompt: tuple[int, ...]) -> AsyncGenerator[list[Event], None]:
        async with self._seats.seat() as seat, aclosing(self._stage.run(asked, prompt, seat).events()) as found:
            async for events in found:
                yield events

    def _encoded(self, asked: Question) -> tuple[int, ...]:
        """As the workload's prompts are: with the tokenizer's chat template, if there is one."""
        workload, hf = self._stage.show.setup.workload, self._stage.tokenizer.hf
        return encode(asked.prompt, hf, template=workload.template, limit=_ANY, truncate="refuse").tokens

    def _check(self, asked: Question, prompt: tuple[int, ...]) -> None:
        context = self._stage.show.contexts[asked.offer.name]
        if self._running.stopping:
            raise ApiError.stopping()
        if not prompt:
            raise ApiError.invalid("the prompt has no token; give a text", "prompt")
        if len(prompt) + asked.max_tokens > context:
            raise ApiError.too_long(context, len(prompt), asked.max_tokens, "prompt")
        if asked.needs_cloud and not self._stage.cloud:
            raise ApiError.failed(cloud=False)


async def _say(send: Send, events: list[Event], more: bool = True) -> None:
    body: dict[str, Any] = {"type": "http.response.body", "body": lines(events), "more_body": more}
    await send(body)
