"""The page's URLs: its files, what it is about, and runs.

The page's own files, read once; nothing else on this machine can be asked for.

What every response of the page carries.

What the page says of itself before anything is asked: models, hardware, link, policies, and what figures mean.
"""

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import aclosing
from functools import cache
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.frontend.openai.access import OPEN, HostGuard, Keyed, read
from serving.frontend.openai.admission import Running, StalledError, patient, while_present
from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.generation import HEADERS
from serving.frontend.openai.server import refused, told
from serving.frontend.openai.service import as_api_error
from serving.frontend.ui.config import Show
from serving.frontend.ui.device_pool import Seats
from serving.frontend.ui.measures import Meter
from serving.frontend.ui.question import Question, question
from serving.frontend.ui.run import Event, lines
from serving.frontend.ui.stage import Stage
from serving.hardware.fleet import Fleet
from serving.workload.encoding import encode

KINDS = {
    "html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}  # fmt: skip


@cache
def static() -> dict[str, bytes]:
    """By path on the server."""
    folder = files("serving.frontend.ui").joinpath("static")
    found = {f"/{file.name}": file.read_bytes() for file in folder.iterdir() if file.is_file()}
    return {"/": found.pop("/index.html"), **found}


def page_files() -> list[Route]:
    return [Route(path, _answer, methods=["GET"]) for path in static()]


async def _answer(request: Request) -> Response:
    path = request.url.path
    kind = KINDS[path.rpartition(".")[2] if path != "/" else "html"]
    return Response(static()[path], media_type=kind, headers={"cache-control": "no-cache"})


PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class WithHeaders:
    """Adds them to whatever `app` answers, refusals included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def headed(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(PAGE_HEADERS)
            await send(message)

        await self._app(scope, receive, headed)


EXAMPLES, LONGEST = 8, 600
"""Prompts of the workload that are offered, and characters of the longest."""


def about(show: Show) -> dict[str, Any]:
    setup, page = show.setup, show.service.page
    fleet, pair = setup.hardware.device_fleets[0], setup.pair
    meter = Meter(fleet, setup.hardware.top, show.factor, page.pace == "hardware", page.remote)
    return {
        "models": {
            "device": {"name": pair.device.named, "stands_for": pair.device.timing.name},
            "cloud": {"name": pair.cloud.named, "stands_for": pair.cloud.timing.name},
        },
        "hardware": {"device": _chip(fleet), "cloud": _chip(setup.hardware.top)},
        "link": setup.network.described if page.shaped else "none: messages arrive at once",
        "time": _time(show),
        "devices": show.devices,
        "cloud": _cloud(show),
        "policies": [offer.about for offer in show.offers.values()],
        "left_out": show.left_out,
        "limits": {
            "max_tokens": page.max_tokens,
            "new_tokens": show.new_tokens,
            "context": min(show.contexts.values()),
        },
        "examples": examples(show),
        "measures": meter.measures,
    }


def examples(show: Show) -> list[str]:
    """A few short prompts of the workload's data set, of as many tasks as there are; none where it cannot be read."""
    try:
        prompts = show.setup.workload.dataset.prompts()
    except (ValueError, OSError):
        return []
    tasks: dict[str, list[str]] = {}
    for prompt in prompts:
        texts = tasks.setdefault(prompt.task, [])
        if len(prompt.text) <= LONGEST and prompt.text not in texts and len(texts) < EXAMPLES:
            texts.append(prompt.text)
    turns = max(map(len, tasks.values()), default=0)
    return [texts[i] for i in range(turns) for texts in tasks.values() if i < len(texts)][:EXAMPLES]


def _chip(fleet: Fleet) -> str:
    chips = f"{fleet.tensor_parallel} x " if fleet.tensor_parallel > 1 else ""
    mode = "" if fleet.mode_name == "default" else f", {fleet.mode_name}"
    return f"{chips}{fleet.chip.name}{mode}"


def _time(show: Show) -> str:
    if show.service.page.pace == "hardware":
        return "Computing lasts as long as on the named chips."
    return "Computing lasts as long as on this machine, whatever chip is named."


def _cloud(show: Show) -> str:
    if show.service.page.remote:
        return f"The cloud is another process, at {show.service.cloud}, which all runs share."
    return "Runs of one policy share its cloud; each policy has a cloud of its own."


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
        *page_files(),
        Route("/api/about", tell, methods=["GET"]),
        Route("/api/runs", Runs(stage, running), methods=["POST"]),
        Route("/healthz", healthz, methods=["GET"]),
    ]
    inner = Starlette(routes=routes, exception_handlers={HTTPException: refused, ApiError: told})
    keyed = Keyed(inner, key, OPEN | static().keys())
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
