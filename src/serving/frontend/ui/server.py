"""The page's server, and `run`, which `python -m serving.page` calls."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING

from serving.deployment.queries import LoadedModels
from serving.deployment.setup import session_tokens
from serving.deployment.topology import Topology
from serving.frontend.openai.admission import RunningRequests
from serving.frontend.openai.http import HttpServer
from serving.frontend.service_options import deployment_digest
from serving.frontend.shutdown import run_until_stopped, stop_signal
from serving.frontend.ui.app import build_app
from serving.frontend.ui.config import UiConfig
from serving.frontend.ui.ui_deployment import UiDeployment, open_device_models, open_shared_models
from serving.runtimes.host import NodeHost

if TYPE_CHECKING:
    from serving.engines.torch.tensor_store import TensorStore

log = logging.getLogger(__name__)


class UiServer:
    """The page at `port`, which is taken at once."""

    def __init__(self, deployment: UiDeployment) -> None:
        page = deployment.config.service.page
        key = page.api_key()
        if not key and not page.is_loopback:
            log.warning("the page on %s asks for no key; set %s", page.host, page.api_key_env)
        self._running = RunningRequests()
        self._http = HttpServer(
            build_app(deployment, self._running, key),
            page.section,
            page.host,
            page.port,
            page.max_connections,
            page.stall_timeout_s,
        )
        self.port = self._http.port

    async def start(self) -> None:
        """Returns when connections are accepted."""
        await self._http.start()

    def close(self) -> None:
        """Gives the port back, also if the page was never started."""
        self._http.close()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Refuses new runs (503), lets running ones finish for `grace_s` seconds, then breaks them off."""
        await self._running.stop(grace_s)
        await self._http.stop()


def run(config: UiConfig, accelerator: str = "cpu") -> None:
    """Serves until SIGINT or SIGTERM. Raises ValueError for an address in use, or a cloud that refuses its devices."""
    from serving.engines.torch.tensor_store import TensorStore

    tensors = TensorStore() if config.service.page.remote_cloud else None
    # Before the event loop runs: it would hold signals back until the models are loaded.
    if tensors is not None:
        models = open_device_models(config.setups, tensors, accelerator)
    else:
        models = open_shared_models(config.setups, accelerator, config.context_lens)
    with ExitStack() as stack:
        for each in models.values():
            stack.callback(each.close)
        asyncio.run(_serve(config, models, tensors))


async def _serve(config: UiConfig, models: Mapping[str, LoadedModels], tensors: "TensorStore | None") -> None:
    """With `tensors`, the first policy's cloud is another process."""
    stop, service = stop_signal(), config.service
    async with AsyncExitStack() as stack:
        host = _remote_cloud_host(config, models, tensors) if tensors is not None else None
        if host is not None:
            stack.push_async_callback(host.close, 1.0)
        deployment = UiDeployment(config, models, host)
        stack.callback(deployment.close)
        # Before the connection: the cloud ends the stream of another page with the same name.
        server = UiServer(deployment)
        stack.callback(server.close)
        if host is not None:
            await host.connect(service.addresses(host.topology))
            host.start(deployment.driver)
        await server.start()
        print(f"page: open http://{service.page.url_host}:{server.port}/", flush=True)
        await run_until_stopped(deployment.driver, stop, lambda: server.stop(service.grace_s))


def _remote_cloud_host(config: UiConfig, models: Mapping[str, LoadedModels], tensors: "TensorStore") -> NodeHost:
    """The host of the first policy's devices, which is not connected yet."""
    first = config.setup.policy.name
    service = config.service.with_session_tokens(session_tokens(config.setup, config.context_lens[first]))
    topology = Topology(config.setup, models[first].cloud_layers, service.timeout_s)
    names, vocabulary = topology.devices[: config.num_devices], len(models[first].tokenizer)
    digest, width = deployment_digest(topology), models[first].hidden_size
    return NodeHost(topology, names, tensors, service.security, service.limits, digest, vocabulary, width)
