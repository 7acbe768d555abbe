"""The page's URLs: its static files, its description, and runs."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, MutableMapping
from contextlib import aclosing, asynccontextmanager
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

from serving.frontend.openai.admission import (
    AdmissionQueue,
    RunningRequests,
    cancel_on_disconnect,
)
from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.generation import SSE_HEADERS
from serving.frontend.openai.http import OPEN_PATHS, ApiKeyGuard, HostGuard, read_body
from serving.frontend.openai.server import on_api_error, on_http_error
from serving.frontend.openai.service import as_api_error
from serving.frontend.ui.config import UiConfig
from serving.frontend.ui.run import UiEvent, encode_sse
from serving.frontend.ui.run_metrics import RunMeter
from serving.frontend.ui.run_request import RunRequest, parse_run_request
from serving.frontend.ui.ui_deployment import UiDeployment
from serving.hardware.fleet import Fleet
from serving.workload.encoding import encode_prompt


def build_app(deployment: UiDeployment, running: RunningRequests, api_key: str | None) -> ASGIApp:
    """An ASGI application. `api_key` is what clients of `/api` must show, None for none; the static files are open."""
    description = describe(deployment.config)

    async def about(_: Request) -> Response:
        return JSONResponse(description)

    async def healthz(_: Request) -> Response:
        return JSONResponse({"alive": True})

    routes = [
        *static_routes(),
        Route("/api/about", about, methods=["GET"]),
        Route("/api/runs", RunEndpoint(deployment, running), methods=["POST"]),
        Route("/healthz", healthz, methods=["GET"]),
    ]
    inner = Starlette(routes=routes, exception_handlers={HTTPException: on_http_error, ApiError: on_api_error})
    keyed = ApiKeyGuard(inner, api_key, OPEN_PATHS | static_files().keys())
    return SecurityHeaders(HostGuard(keyed, deployment.config.service.page))


# Runs.

_NO_LIMIT = 1 << 62
"""Tokens: `RunEndpoint._check` compares prompts with the context instead."""


class RunEndpoint:
    """An ASGI application: a run's events (text/event-stream). A client that disconnects ends its run."""

    def __init__(self, deployment: UiDeployment, running: RunningRequests) -> None:
        page = deployment.config.service.page
        self._deployment, self._running, self._options = deployment, running, page
        self._device_pool = DevicePool(deployment.config.num_devices, page.max_waiting, page.retry_after_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            raw = await read_body(Request(scope, receive), self._options.max_body_nbytes, self._options.body_timeout_s)
            await cancel_on_disconnect(receive, self._answer(raw, send))
        except ClientDisconnect:
            pass  # no client is left to answer
        except Exception as problem:
            await as_api_error(problem).response()(scope, receive, send)

    async def _answer(self, raw: bytes, send: Send) -> None:
        """An error before the first event sets the status; a later one is an event."""
        config = self._deployment.config
        request = parse_run_request(raw, config.policy_cards, self._options.max_tokens, config.default_max_tokens)
        prompt = await asyncio.to_thread(self._encode, request)
        self._check(request, prompt)
        async with aclosing(self._running.stream(self._events(request, prompt))) as batches:
            first = await anext(batches)
            await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
            await _send_events(send, first)
            try:
                async for events in batches:
                    await _send_events(send, events)
            except Exception as problem:
                await _send_events(send, [("error", {"message": as_api_error(problem).message})])
            await _send_events(send, [], more=False)

    async def _events(self, request: RunRequest, prompt: tuple[int, ...]) -> AsyncGenerator[list[UiEvent], None]:
        async with (
            self._device_pool.acquire() as device_index,
            aclosing(self._deployment.run(request, prompt, device_index).events()) as batches,
        ):
            async for events in batches:
                yield events

    def _encode(self, request: RunRequest) -> tuple[int, ...]:
        """As prompts of the workload: with the tokenizer's chat template, if it has one."""
        workload, hf = self._deployment.config.setup.workload, self._deployment.tokenizer.hf
        return encode_prompt(
            request.prompt, hf, template=workload.template, max_tokens=_NO_LIMIT, truncate="refuse"
        ).tokens

    def _check(self, request: RunRequest, prompt: tuple[int, ...]) -> None:
        """Raises ApiError."""
        context_len = self._deployment.config.context_lens[request.policy_card.name]
        if self._running.stopping:
            raise ApiError.stopping()
        if not prompt:
            raise ApiError.invalid("the prompt has no token; give a text", "prompt")
        if len(prompt) + request.max_tokens > context_len:
            raise ApiError.too_long(context_len, len(prompt), request.max_tokens, "prompt")
        if request.needs_cloud and not self._deployment.cloud_reachable:
            raise ApiError.failed(cloud_reachable=False)


class DevicePool:
    """One queue per device. A run goes to an idle device, or else to the shortest queue."""

    def __init__(self, num_devices: int, max_waiting: int, retry_after_s: float) -> None:
        self._queues = [AdmissionQueue(max_waiting, retry_after_s) for _ in range(num_devices)]

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[int]:
        """Holds a device, and yields its index. Raises ApiError (429) if all queues are full."""
        index, queue = min(enumerate(self._queues), key=lambda each: (each[1].busy, each[1].waiting))
        async with queue.admit():
            yield index


async def _send_events(send: Send, events: list[UiEvent], more: bool = True) -> None:
    body: dict[str, Any] = {"type": "http.response.body", "body": encode_sse(events), "more_body": more}
    await send(body)


# The description: models, hardware, link, policies, metrics.

MAX_EXAMPLES, MAX_EXAMPLE_CHARS = 8, 600
"""Example prompts that the page offers, and characters of the longest."""


def describe(config: UiConfig) -> dict[str, Any]:
    setup, page = config.setup, config.service.page
    fleet, pair = setup.hardware.device_fleets[0], setup.pair
    meter = RunMeter(fleet, setup.hardware.head_fleet, {}, page.pace == "hardware", page.remote_cloud)
    return {
        "models": {
            "device": {"name": pair.device.display_name, "stands_for": pair.device.timed_architecture.name},
            "cloud": {"name": pair.cloud.display_name, "stands_for": pair.cloud.timed_architecture.name},
        },
        "hardware": {"device": _chip_text(fleet), "cloud": _chip_text(setup.hardware.head_fleet)},
        "link": setup.network.described if page.shaped else "none: messages arrive at once",
        "time_text": _time_text(config),
        "devices": config.num_devices,
        "cloud_text": _cloud_text(config),
        "policies": [card.as_json for card in config.policy_cards.values()],
        "excluded_policies": config.excluded_policies,
        "limits": {
            "max_tokens": page.max_tokens,
            "default_max_tokens": config.default_max_tokens,
            "context": min(config.context_lens.values()),
        },
        "examples": examples(config),
        "metrics": meter.metrics,
    }


def examples(config: UiConfig) -> list[str]:
    """Short prompts of the workload's data set, alternating between its tasks; none if the data cannot be read."""
    try:
        prompts = config.setup.workload.dataset.prompts()
    except (ValueError, OSError):
        return []
    tasks: dict[str, list[str]] = {}
    for prompt in prompts:
        texts = tasks.setdefault(prompt.task, [])
        if len(prompt.text) <= MAX_EXAMPLE_CHARS and prompt.text not in texts and len(texts) < MAX_EXAMPLES:
            texts.append(prompt.text)
    turns = max(map(len, tasks.values()), default=0)
    return [texts[i] for i in range(turns) for texts in tasks.values() if i < len(texts)][:MAX_EXAMPLES]


def _chip_text(fleet: Fleet) -> str:
    chips = f"{fleet.tensor_parallel} x " if fleet.tensor_parallel > 1 else ""
    mode = "" if fleet.mode_name == "default" else f", {fleet.mode_name}"
    return f"{chips}{fleet.chip.name}{mode}"


def _time_text(config: UiConfig) -> str:
    if config.service.page.pace == "hardware":
        return "Computing lasts as long as on the named chips."
    return "Computing lasts as long as on this machine, whatever chip is named."


def _cloud_text(config: UiConfig) -> str:
    if config.service.page.remote_cloud:
        return f"The cloud is another process, at {config.service.cloud}, which all runs share."
    return "Runs of one policy share its cloud; each policy has a cloud of its own."


# Static files.

CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@cache
def static_files() -> dict[str, bytes]:
    """All files of `static/`, by URL path. No other file of this machine can be requested."""
    folder = files("serving.frontend.ui").joinpath("static")
    found = {f"/{file.name}": file.read_bytes() for file in folder.iterdir() if file.is_file()}
    return {"/": found.pop("/index.html"), **found}


def static_routes() -> list[Route]:
    return [Route(path, _serve_file, methods=["GET"]) for path in static_files()]


async def _serve_file(request: Request) -> Response:
    path = request.url.path
    kind = CONTENT_TYPES[path.rpartition(".")[2] if path != "/" else "html"]
    return Response(static_files()[path], media_type=kind, headers={"cache-control": "no-cache"})


SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class SecurityHeaders:
    """Adds SECURITY_HEADERS to every response of `app`, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)
