"""The endpoint, in the event loop of its gateway."""

import logging

from serving.frontend.openai.app import app
from serving.frontend.openai.endpoint import Endpoint
from serving.frontend.openai.gateway import Gateway
from serving.frontend.openai.http import Http
from serving.frontend.openai.service import Service

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
