"""The page on a socket, and the process that shows it."""

import asyncio
import logging
from contextlib import AsyncExitStack

from serving.deployment.topology import Cast
from serving.frontend.openai.admission import Running
from serving.frontend.openai.http import Http
from serving.frontend.service_options import digest
from serving.frontend.shutdown import drive, told_to_stop
from serving.frontend.ui.app import app
from serving.frontend.ui.config import Show
from serving.frontend.ui.device_pool import open_all, open_devices
from serving.frontend.ui.stage import Stage
from serving.runtimes.host import Host

log = logging.getLogger(__name__)


class Server:
    """A running page at `port`, once it is started."""

    def __init__(self, stage: Stage) -> None:
        page = stage.show.service.page
        key = page.api_key()
        if not key and not page.loopback:
            log.warning("the page on %s asks for no key; set %s", page.host, page.api_key_env)
        self._running = Running()
        self._http = Http(app(stage, self._running, key), page.section, page.host, page.port, page.connections)
        self.port = self._http.port

    async def start(self) -> None:
        """Returns when connections are accepted."""
        await self._http.start()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Refuses new runs (503), lets those under way end for `grace_s` seconds, then breaks them off."""
        await self._running.stop(grace_s)
        await self._http.stop()


def run(show: Show, accelerator: str = "cpu") -> None:
    """Serves until SIGINT or SIGTERM. Raises ValueError for an address in use, or a cloud that refuses its devices."""
    asyncio.run(_run(show, accelerator))


async def _run(show: Show, accelerator: str) -> None:
    stop, service = told_to_stop(), show.service
    async with AsyncExitStack() as stack:
        stage = await _afar(show, accelerator, stack) if service.page.remote else _here(show, accelerator)
        stack.callback(stage.close)
        server = Server(stage)
        await server.start()
        print(f"page: open http://{service.page.url_host}:{server.port}/", flush=True)
        await drive(stage.live, stop, lambda: server.stop(service.grace_s))


def _here(show: Show, accelerator: str) -> Stage:
    return Stage(show, open_all(show.setups, accelerator, show.contexts))


async def _afar(show: Show, accelerator: str, stack: AsyncExitStack) -> Stage:
    """The first policy's cloud is dialled; one that is not there yet is tried again, again and again."""
    from serving.engines.torch.tensor_store import Blobs

    blobs, service, first = Blobs(), show.service, show.setup.policy.name
    models = open_devices(show.setups, blobs, accelerator)
    cast = Cast(show.setup, models[first].cloud_layers, service.timeout_s)
    names, vocabulary = cast.devices[: show.devices], len(models[first].tokenizer)
    host = Host(cast, names, blobs, service.security, service.limits, digest(cast), vocabulary)
    stage = Stage(show, models, host)
    stack.push_async_callback(host.close, 1.0)
    await host.dial(service.addresses(cast))
    host.play(stage.live)
    return stage
