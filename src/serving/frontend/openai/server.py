"""The endpoint, in the event loop of its gateway.

The endpoint's URLs.
"""

import logging
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from serving.frontend.openai.access import HostGuard, Keyed
from serving.frontend.openai.errors import ApiError
from serving.frontend.openai.gateway import Gateway
from serving.frontend.openai.generation import Generation
from serving.frontend.openai.http import Http
from serving.frontend.openai.options import Endpoint
from serving.frontend.openai.request_handlers import Chat, Completions
from serving.frontend.openai.service import Service
from serving.frontend.routing_api.handler import Decisions


def app(service: Service, key: str | None = None) -> ASGIApp:
    """An ASGI application around a service; `key` is what clients must show, None for none."""
    pages = _Pages(service)
    routes = [
        Route("/v1/models", pages.models, methods=["GET"]),
        Route("/v1/models/{name:path}", pages.model, methods=["GET"]),
        Route("/v1/completions", Generation(service, Completions()), methods=["POST"]),
        Route("/v1/chat/completions", Generation(service, Chat()), methods=["POST"]),
        Route("/v1/route", Decisions(service), methods=["POST"]),
        Route("/metrics", pages.metrics, methods=["GET"]),
        Route("/healthz", pages.healthz, methods=["GET"]),
        Route("/readyz", pages.readyz, methods=["GET"]),
    ]
    inner = Starlette(routes=routes, exception_handlers={HTTPException: refused, ApiError: told})
    return HostGuard(Keyed(inner, key), service.endpoint)


class _Pages:
    """What is read, not asked."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        self._service.known(request.path_params["name"])
        return JSONResponse(self._card())

    async def metrics(self, _: Request) -> Response:
        return Response(self._service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def healthz(self, _: Request) -> Response:
        """Alive: this answer is the proof."""
        return JSONResponse({"alive": True})

    async def readyz(self, _: Request) -> Response:
        why = self._service.unready
        state = {"ready": not why, "cloud": self._service.gateway.cloud, "why": why or None}
        return JSONResponse(state, 503 if why else 200)

    def _card(self) -> dict[str, object]:
        created = self._service.gateway.created
        return {"id": self._service.model, "object": "model", "created": created, "owned_by": "tandem"}


async def refused(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    what = {404: "no such URL", 405: f"{request.method} is not served"}.get(status, HTTPStatus(status).phrase)
    code = HTTPStatus(status).name.lower()
    return ApiError(status, f"{what}: {request.url.path}", code, None, headers).response()


async def told(_: Request, error: Exception) -> Response:
    return error.response() if isinstance(error, ApiError) else ApiError.internal().response()


log = logging.getLogger(__name__)


class Server:
    """A running endpoint at `port`; `serve` starts one."""

    def __init__(self, service: Service, key: str | None) -> None:
        self.service = service
        end = service.endpoint
        self._http = Http(app(service, key), "service.endpoint", end.host, end.port, end.connections)
        self.port = self._http.port

    async def start(self) -> None:
        """Returns when connections are accepted."""
        await self._http.start()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Refuses new requests (503), lets those in hand end for `grace_s` seconds, then breaks them off."""
        await self.service.running.stop(grace_s)
        await self._http.stop()


async def serve(endpoint: Endpoint, gateway: Gateway) -> Server:
    """A running endpoint for a gateway that lives in this event loop.

    Raises ValueError when its address cannot be had, or its key is empty.
    """
    key = endpoint.api_key()
    if not key and not endpoint.loopback:
        log.warning("the endpoint on %s asks for no key; set %s", endpoint.host, endpoint.api_key_env)
    server = Server(Service(endpoint, gateway), key)
    await server.start()
    return server
