"""The endpoint on a socket, in the event loop of its gateway."""

import asyncio
import logging
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn

from serving.endpoint.app import app
from serving.endpoint.endpoint import Endpoint
from serving.endpoint.gateway import Gateway
from serving.endpoint.protocol import Protocol
from serving.endpoint.service import Service

log = logging.getLogger(__name__)

FLUSH_S = 2
"""How long clients have to take what is left for them when a server stops."""


class Server:
    """A running endpoint at `port`; `serve` starts one."""

    def __init__(self, service: Service, key: str | None) -> None:
        self.service = service
        self._socket = _bound(service.endpoint)
        self.port: int = self._socket.getsockname()[1]
        self._http = _Quiet(
            uvicorn.Config(
                app(service, key),
                log_config=None,
                log_level="critical",
                access_log=False,
                lifespan="off",
                ws="none",
                http=Protocol,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=service.endpoint.connections,
                timeout_graceful_shutdown=FLUSH_S,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when connections are accepted."""
        self._task = asyncio.create_task(self._http.serve([self._socket]))
        started = asyncio.create_task(self._http.up.wait())
        await asyncio.wait({self._task, started}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            started.cancel()
            self._task.result()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Refuses new requests (503), lets those in hand end for `grace_s` seconds, then breaks them off."""
        await self.service.running.stop(grace_s)
        self._http.should_exit = True
        if self._task:
            await self._task


class _Quiet(uvicorn.Server):
    """Leaves signals to whoever owns the process, and says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


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


def _bound(endpoint: Endpoint) -> socket.socket:
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    try:
        return socket.create_server((endpoint.host, endpoint.port), family=family, backlog=endpoint.connections)
    except OSError as error:
        raise ValueError(
            f"endpoint: cannot listen on {endpoint.host} port {endpoint.port} ({error.strerror}); choose another "
            "endpoint.port (0: any free one) or endpoint.host"
        ) from error
