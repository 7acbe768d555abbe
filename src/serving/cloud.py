"""`python -m serving.cloud +policy=synera ...`: a cloud that serves its devices until SIGINT or SIGTERM.

Give it the same arguments as its devices: they refuse each other if their configurations differ.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving.deployment.queries import LoadedModels
from serving.deployment.setup import Setup, context_tokens, session_tokens
from serving.deployment.topology import Topology
from serving.deployment.wiring import ChipFactory, connect_nodes
from serving.drivers.clock import WallClock
from serving.drivers.real_time import RealTimeDriver
from serving.frontend.health import CloudStats
from serving.frontend.service_options import ServiceOptions, deployment_digest
from serving.frontend.shutdown import run_until_stopped, stop_signal
from serving.hardware.executor import FatalWorkError, TransientWorkError
from serving.nodes.speculator import Speculator
from serving.nodes.worker import Worker
from serving.runtimes.host import NodeHost

if TYPE_CHECKING:
    from serving.engines.torch.tensor_store import TensorStore
    from serving.frontend.health import HealthServer

log = logging.getLogger(__name__)

_POLL_S = 0.01
"""How often a stopping cloud checks that all work is done."""


@dataclass(frozen=True)
class CloudConfig:
    """Raises ValueError for a policy without a cloud, tier nodes without an address, a process without a tier node,
    and a token that would travel without TLS.
    """

    setup: Setup
    service: ServiceOptions

    def __post_init__(self) -> None:
        if not self.setup.uses_target:
            raise ValueError(
                f"policy {self.setup.policy.name} places nothing in a cloud: there is nothing to serve. Start the "
                "device alone, or choose another policy"
            )
        topology = Topology(self.setup, self.setup.pair.cloud.timed_architecture.layers)
        self.service.local_nodes(topology)
        security = self.service.security
        for address in dict.fromkeys(self.service.addresses(topology).values()):
            security.check_token_is_protected(address, security.certificate is not None)


def unread_run(*, config: CloudConfig, **_: object) -> tuple[object, ...]:
    """Artifacts of the setup that `run` does not read."""
    return config.setup.unread_artifacts


def run(config: CloudConfig, accelerator: str = "cpu") -> None:
    """Serves until SIGINT or SIGTERM. Raises ValueError for an address in use, a node of an earlier tier that refuses
    this one, and an engine that fails for good.
    """
    from serving.deployment.model_loading import load_side, num_layers
    from serving.engines.torch.tensor_store import TensorStore

    setup, tensors = config.setup, TensorStore()
    context_len = context_tokens(setup, config.service.context_tokens)
    service = config.service.with_session_tokens(session_tokens(setup, context_len))
    topology = Topology(setup, num_layers(setup.pair.cloud))
    tier = topology.tier_of[service.local_nodes(topology)[0]] if setup.hardware.tiers else None
    try:
        # Before the event loop runs: it would hold signals back until the models are loaded.
        with closing(load_side(setup, "cloud", tensors, accelerator, context_len, tier)) as models:
            asyncio.run(_serve(topology, service, models, tensors))
    except FatalWorkError as broken:
        raise ValueError(str(broken)) from broken


async def _serve(topology: Topology, service: ServiceOptions, models: LoadedModels, tensors: "TensorStore") -> None:
    from serving.frontend.health import HealthServer

    stop, setup = stop_signal(), topology.setup
    names, addresses = service.local_nodes(topology), service.addresses(topology)
    tier = topology.tier_of[names[0]] if setup.hardware.tiers else None
    chips = ChipFactory(topology, models, ())
    nodes = [node for node in map(topology.create_node, names) if isinstance(node, Worker | Speculator)]
    stats = CloudStats(*(node.worker if isinstance(node, Speculator) else node for node in nodes))
    host = NodeHost(
        topology,
        names,
        tensors,
        service.security,
        service.limits,
        deployment_digest(topology),
        len(models.tokenizer),
        models.hidden_size,
    )
    driver = RealTimeDriver(WallClock(), [stats], service.pace, _error_handler(stats))
    for node in nodes:
        driver.add(node.name, node, chips(node.name))
    if service.shaped:
        connect_nodes(driver, topology)
    async with AsyncExitStack() as stack:
        stack.callback(driver.close)
        stack.callback(models.stop)
        stack.push_async_callback(host.close, service.grace_s)
        address = await _listen(host, addresses[names[0]], f"nodes.{names[0]}" if tier else "cloud")
        await host.connect({node: addresses[node] for node in topology.upstream_nodes(names[0])})
        health = HealthServer(stats, lambda: len(host.reachable), stop.is_set)
        where = await _start_health_server(service, health, stack)
        host.start(driver)
        name = names[0] if tier else "cloud"
        print(f"{name}: {setup.pair.cloud.token_source} listens on {address}{where}", flush=True)
        await run_until_stopped(driver, stop, lambda: _drained(driver, nodes, service.grace_s))


async def _drained(driver: RealTimeDriver, nodes: Sequence[Worker | Speculator], grace_s: float) -> None:
    """Returns when all nodes are idle and their messages have left, or after `grace_s`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            while driver.has_messages_underway or not all(node.is_idle for node in nodes):
                await asyncio.sleep(_POLL_S)


def _error_handler(stats: CloudStats) -> Callable[[Exception], None]:
    def on_error(problem: Exception) -> None:
        stats.errors += 1
        if isinstance(problem, TransientWorkError):
            log.error("%s", problem)
            return
        log.error("an error in the cloud; the affected sessions start again", exc_info=problem)

    return on_error


async def _listen(host: NodeHost, address: str, option: str) -> str:
    try:
        return await host.listen(address)
    except RuntimeError as problem:
        raise ValueError(
            f"cannot listen: {problem}; is another cloud running there? Choose another service.{option}"
        ) from problem


async def _start_health_server(service: ServiceOptions, server: "HealthServer", stack: AsyncExitStack) -> str:
    if service.health.port is None:
        return ""
    port = await server.serve(service.health, service.health.port)
    stack.push_async_callback(server.stop)
    return f", health on http://{service.health.url_host}:{port}/readyz"


if __name__ == "__main__":
    from pipeline.command.service import main

    main("cloud", __doc__)
