"""`python -m serving.device +policy=synera ...`: a device that works with its cloud, behind an OpenAI endpoint.

One process is one of the testbed's devices (service.device). Give it the same arguments as its cloud: they refuse each
other if their configurations differ.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving.deployment.queries import LoadedModels
from serving.deployment.setup import Setup, context_tokens, session_tokens
from serving.deployment.topology import Topology
from serving.deployment.wiring import ChipFactory, connect_nodes
from serving.drivers.clock import WallClock
from serving.drivers.real_time import RealTimeDriver
from serving.frontend.device_gateway import DeviceGateway
from serving.frontend.service_options import ServiceOptions, deployment_digest
from serving.frontend.shutdown import FaultBarrier, run_until_stopped, stop_signal
from serving.nodes.device import Device
from serving.runtimes.host import NodeHost

if TYPE_CHECKING:
    from serving.engines.torch.tensor_store import TensorStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeviceConfig:
    """Raises ValueError for a device that the testbed does not have, tier nodes without an address, a token that would
    travel without TLS, more open sessions than a cloud keeps, and an empty key.
    """

    setup: Setup
    service: ServiceOptions

    def __post_init__(self) -> None:
        service, devices = self.service, self.setup.num_devices
        if service.device >= devices:
            raise ValueError(
                f"service.device is {service.device}, but the testbed has {devices}, counted from 0; for more, give "
                "the cloud and all devices the same workload.devices"
            )
        if self.setup.uses_target:
            addresses = service.addresses(Topology(self.setup, self.setup.pair.cloud.timed_architecture.layers))
            for address in dict.fromkeys(addresses.values()):
                service.security.check_token_is_protected(address, service.security.ca_certificate is not None)
            service.check_num_sessions(self.setup.workload.max_concurrency)
        service.endpoint.api_key()


def unread_run(*, config: DeviceConfig, **_: object) -> tuple[object, ...]:
    """Artifacts of the setup that `run` does not read."""
    return config.setup.unread_artifacts


def run(config: DeviceConfig, accelerator: str = "cpu") -> None:
    """Serves until SIGINT or SIGTERM. Raises ValueError for an address in use, or a cloud that refuses this device."""
    from serving.deployment.model_loading import load_side
    from serving.engines.torch.tensor_store import TensorStore

    setup, tensors = config.setup, TensorStore()
    context_len = context_tokens(setup, config.service.context_tokens)
    service = config.service.with_session_tokens(session_tokens(setup, context_len))
    # Before the event loop runs: it would hold signals back until the models are loaded.
    models = load_side(setup, "device", tensors, accelerator)
    topology = Topology(setup, models.cloud_layers, service.timeout_s, max_idle_sessions=service.max_idle_sessions)
    asyncio.run(_serve(topology, service, models, tensors, context_len))


async def _serve(
    topology: Topology, service: ServiceOptions, models: LoadedModels, tensors: "TensorStore", context_len: int
) -> None:
    from serving.frontend.openai.server import bind
    from serving.frontend.routing_api.handler import routing_routes

    stop, setup, name = stop_signal(), topology.setup, topology.devices[service.device]
    digest, vocabulary = deployment_digest(topology), len(models.tokenizer)
    host = NodeHost(
        topology, (name,), tensors, service.security, service.limits, digest, vocabulary, models.hidden_size
    )
    gateway = DeviceGateway(
        name, setup.policy, models.tokenizer, context_len, lambda: _all_tiers_reachable(host), setup.requires_greedy
    )
    driver = _build_driver(topology, name, models, service, gateway)
    async with AsyncExitStack() as stack:
        stack.callback(driver.close)
        stack.push_async_callback(host.close, 1.0)
        # Before the cloud hears of this device: for one of the same name it would end the stream of the other.
        endpoint = bind(service.endpoint, gateway, routing_routes)
        stack.callback(endpoint.close)
        await host.connect(service.addresses(topology))
        host.start(driver)
        gateway.attach(driver)
        await endpoint.start()
        print(f"device: {name} answers on http://{service.endpoint.url_host}:{endpoint.port}/v1", flush=True)
        stack.callback(asyncio.create_task(_announce_cloud(host, service)).cancel)
        await run_until_stopped(driver, stop, lambda: endpoint.stop(service.grace_s))


async def _announce_cloud(host: NodeHost, service: ServiceOptions) -> None:
    """Prints that the cloud is connected, after earlier messages that it could not be reached."""
    addresses = service.addresses(host.topology)
    if addresses:
        await host.wait_until_reachable(addresses)
        where = f"of {len(addresses)} nodes" if host.topology.setup.hardware.tiers else f"at {service.cloud}"
        print(f"device: its cloud {where} is there", flush=True)


def _build_driver(
    topology: Topology, name: str, models: LoadedModels, service: ServiceOptions, gateway: DeviceGateway
) -> RealTimeDriver:
    driver = RealTimeDriver(WallClock(), [gateway], service.pace, _log_error)
    node = topology.create_node(name)
    assert isinstance(node, Device)
    driver.add(name, FaultBarrier(node), ChipFactory(topology, models, ())(name))
    if service.shaped:
        connect_nodes(driver, topology)
    return driver


def _log_error(problem: Exception) -> None:
    log.error("the device's model failed; the session that it worked for ends", exc_info=problem)


def _all_tiers_reachable(host: NodeHost) -> bool:
    """True if at least one node of every tier can be reached."""
    return all(not host.reachable.isdisjoint(nodes) for nodes in host.topology.tiers.values())


if __name__ == "__main__":
    from pipeline.command.service import main

    main("device", __doc__)
