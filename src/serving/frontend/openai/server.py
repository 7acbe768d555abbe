"""The endpoint's URLs, and the server that runs them in the event loop of its gateway."""

import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.gateway import Gateway
from serving.frontend.openai.generation import GenerationEndpoint
from serving.frontend.openai.http import ApiKeyGuard, HostGuard, HttpServer
from serving.frontend.openai.options import EndpointOptions
from serving.frontend.openai.request_handlers import ChatHandler, CompletionsHandler
from serving.frontend.openai.service import EndpointService

log = logging.getLogger(__name__)

ExtraRoutes = Callable[[EndpointService], Sequence[Route]]
"""Makes further URLs over the endpoint's own service; they share its queue, limits, key and metrics."""


def build_app(service: EndpointService, api_key: str | None = None, extra_routes: Sequence[Route] = ()) -> ASGIApp:
    """An ASGI application around a service; `api_key` is what clients must show, None for none."""
    pages = _StatusPages(service)
    routes = [
        Route("/v1/models", pages.models, methods=["GET"]),
        Route("/v1/models/{name:path}", pages.model, methods=["GET"]),
        Route("/v1/completions", GenerationEndpoint(service, CompletionsHandler()), methods=["POST"]),
        Route("/v1/chat/completions", GenerationEndpoint(service, ChatHandler()), methods=["POST"]),
        *extra_routes,
        Route("/metrics", pages.metrics, methods=["GET"]),
        Route("/healthz", pages.healthz, methods=["GET"]),
        Route("/readyz", pages.readyz, methods=["GET"]),
    ]
    inner = Starlette(routes=routes, exception_handlers={HTTPException: on_http_error, ApiError: on_api_error})
    return HostGuard(ApiKeyGuard(inner, api_key), service.options)


class _StatusPages:
    """The URLs that only read state."""

    def __init__(self, service: EndpointService) -> None:
        self._service = service

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        self._service.check_model(request.path_params["name"])
        return JSONResponse(self._card())

    async def metrics(self, _: Request) -> Response:
        return Response(self._service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def healthz(self, _: Request) -> Response:
        return JSONResponse({"alive": True})

    async def readyz(self, _: Request) -> Response:
        why = self._service.unready_reason
        state = {"ready": not why, "cloud": self._service.gateway.cloud_reachable, "why": why or None}
        return JSONResponse(state, 503 if why else 200)

    def _card(self) -> dict[str, object]:
        created = self._service.gateway.created_unix_s
        return {"id": self._service.model_name, "object": "model", "created": created, "owned_by": "tandem"}


async def on_http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    what = {404: "no such URL", 405: f"{request.method} is not served"}.get(status, HTTPStatus(status).phrase)
    code = HTTPStatus(status).name.lower()
    return ApiError(status, f"{what}: {request.url.path}", code, None, headers).response()


async def on_api_error(_: Request, error: Exception) -> Response:
    return error.response() if isinstance(error, ApiError) else ApiError.internal().response()


class EndpointServer:
    """An endpoint at `port`, which is taken at once. `bind` makes one, and `serve` also starts it."""

    def __init__(self, service: EndpointService, api_key: str | None, extra_routes: Sequence[Route] = ()) -> None:
        self.service = service
        options, app = service.options, build_app(service, api_key, extra_routes)
        self._http = HttpServer(
            app, options.section, options.host, options.port, options.max_connections, options.stall_timeout_s
        )
        self.port = self._http.port

    async def start(self) -> None:
        """Returns when connections are accepted."""
        await self._http.start()

    def close(self) -> None:
        """Gives the port back, also if the endpoint was never started."""
        self._http.close()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Refuses new requests (503), lets running ones finish for `grace_s` seconds, then breaks them off."""
        await self.service.running.stop(grace_s)
        await self._http.stop()


def bind(options: EndpointOptions, gateway: Gateway, extra_routes: ExtraRoutes | None = None) -> EndpointServer:
    """An endpoint that has its port and is not started. Raises ValueError as `serve`."""
    key = options.api_key()
    if not key and not options.is_loopback:
        log.warning("the endpoint on %s asks for no key; set %s", options.host, options.api_key_env)
    service = EndpointService(options, gateway)
    return EndpointServer(service, key, extra_routes(service) if extra_routes else ())


async def serve(options: EndpointOptions, gateway: Gateway, extra_routes: ExtraRoutes | None = None) -> EndpointServer:
    """Starts an endpoint for a gateway that lives in this event loop.

    Raises ValueError if the address is in use or the key is empty.
    """
    server = bind(options, gateway, extra_routes)
    await server.start()
    return server
