"""`python -m serving.device +policy=synera ...`: a device that works with its cloud, behind an OpenAI endpoint.

One process is one of the testbed's devices (service.device). Give it the same words as its cloud: both sides refuse
each other when they mean different things.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass

from serving.deployment.queries import Models
from serving.deployment.setup import Setup, context_tokens
from serving.deployment.topology import Cast
from serving.deployment.wiring import Chips, link
from serving.drivers.clock import Wall
from serving.drivers.real_time import Live
from serving.frontend.device_gateway import DeviceGateway
from serving.frontend.service_options import Service, digest
from serving.frontend.shutdown import Guarded, drive, told_to_stop
from serving.nodes.device import Device
from serving.runtimes.host import Host

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Raises ValueError for a device that the testbed does not have, nodes of tiers that are nobody knows where, a
    token that anybody could read, an empty key.
    """

    setup: Setup
    service: Service

    def __post_init__(self) -> None:
        service, devices = self.service, self.setup.devices
        if service.device >= devices:
            raise ValueError(
                f"service.device is {service.device}, but the testbed has {devices}, counted from 0; for more, give "
                "the cloud and all devices the same workload.devices"
            )
        if self.setup.placed:
            addresses = service.addresses(Cast(self.setup, self.setup.pair.cloud.timing.layers))
            for address in dict.fromkeys(addresses.values()):
                service.security.check(address, service.security.authority is not None)
        service.endpoint.api_key()


def run(place: Place, accelerator: str = "cpu") -> None:
    """Serves until SIGINT or SIGTERM. Raises ValueError for an address in use, or a cloud that refuses this device."""
    asyncio.run(_run(place.setup, place.service, accelerator))


async def _run(setup: Setup, service: Service, accelerator: str) -> None:
    from serving.deployment.model_loading import open_side
    from serving.engines.torch.tensor_store import Blobs
    from serving.frontend.openai.server import serve

    stop = told_to_stop()
    context, blobs = context_tokens(setup, service.context_tokens), Blobs()
    models = open_side(setup, "device", blobs, accelerator)
    cast = Cast(setup, models.cloud_layers, service.timeout_s)
    name = cast.devices[service.device]
    host = Host(cast, (name,), blobs, service.security, service.limits, digest(cast), len(models.tokenizer))
    gateway = DeviceGateway(name, setup.policy, models.tokenizer, context, lambda: _reachable(host), setup.greedy)
    live = _live(cast, name, models, service, gateway)
    async with AsyncExitStack() as stack:
        stack.callback(live.close)
        stack.push_async_callback(host.close, 1.0)
        await host.dial(service.addresses(cast))
        host.play(live)
        gateway.play(live)
        endpoint = await serve(service.endpoint, gateway)
        print(f"device: {name} answers on http://{service.endpoint.url_host}:{endpoint.port}/v1", flush=True)
        stack.callback(asyncio.create_task(_met(host, service)).cancel)
        await drive(live, stop, lambda: endpoint.stop(service.grace_s))


async def _met(host: Host, service: Service) -> None:
    """Whoever read that a cloud is tried again wants to read that it is there."""
    addresses = service.addresses(host.cast)
    if addresses:
        await host.reached(addresses)
        where = f"of {len(addresses)} nodes" if host.cast.setup.hardware.tiers else f"at {service.cloud}"
        print(f"device: its cloud {where} is there", flush=True)


def _live(cast: Cast, name: str, models: Models, service: Service, gateway: DeviceGateway) -> Live:
    live = Live(Wall(), [gateway], service.pace, _survived)
    node = cast.node(name)
    assert isinstance(node, Device)
    live.add(name, Guarded(node), Chips(cast, models, ())(name))
    if service.shaped:
        link(live, cast)
    return live


def _survived(problem: Exception) -> None:
    log.error("the device's model failed; the session that it worked for ends", exc_info=problem)


def _reachable(host: Host) -> bool:
    """Is a node of every tier there?"""
    return all(not host.reachable.isdisjoint(nodes) for nodes in host.cast.tiers.values())


if __name__ == "__main__":
    from pipeline.command.service import main

    main("device", __doc__)
