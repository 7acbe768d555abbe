"""`python -m serving.device +policy=synera ...`: a device that works with its cloud, behind an OpenAI endpoint.

Give it the same words as its cloud: both sides refuse each other when they mean different things.
"""

import asyncio

from serving.cast import Cast
from serving.drivers.clock import Wall
from serving.drivers.live import Live
from serving.gateway import DeviceGateway
from serving.host import Host
from serving.runtimes.runtime import Models
from serving.scene import Chips, link, populate
from serving.service import Service
from serving.setup import Setup
from serving.stopping import told_to_stop


def run(setup: Setup, service: Service, accelerator: str = "cpu") -> None:
    """Serves until SIGINT or SIGTERM. Raises ValueError for a device that the testbed does not have."""
    cast = Cast(setup, 0)
    if service.device >= len(cast.devices):
        raise ValueError(f"service.device is {service.device}; the testbed has devices 0 to {len(cast.devices) - 1}")
    asyncio.run(_run(setup, service, accelerator))


async def _run(setup: Setup, service: Service, accelerator: str) -> None:
    from serving.endpoint.server import serve
    from serving.engine.blobs import Blobs
    from serving.open import open_side

    blobs = Blobs()
    models = open_side(setup.pair, "device", blobs, accelerator)
    cast = Cast(setup, models.cloud_layers, service.timeout_s)
    name = cast.devices[service.device]
    host = Host(cast, (name,), blobs, service.security, service.limits, cast.digest)
    gateway = _gateway(setup, models, name, host)
    live = Live(Wall(), [gateway], service.pace)
    populate(live, cast, Chips(cast, models, ()), (name,))
    if service.shaped:
        link(live, cast)
    stop = told_to_stop(live.stir)
    endpoint = None
    try:
        await host.dial(dict.fromkeys(cast.workers[:1], service.cloud))
        host.play(live)
        gateway.play(live)
        endpoint = await serve(service.endpoint, gateway)
        print(f"device: {name} answers on http://{service.endpoint.host}:{endpoint.port}/v1", flush=True)
        await live.run(stop.is_set)
    finally:
        if endpoint:
            await endpoint.stop(5.0)
        await host.close(grace_s=1.0)
        live.close()


def _gateway(setup: Setup, models: Models, name: str, host: Host) -> DeviceGateway:
    context = setup.workload.max_prompt_tokens + setup.workload.max_new_tokens
    reachable = lambda: not host.cast.workers or bool(host.reachable)  # noqa: E731
    return DeviceGateway(name, setup.policy, setup.policy.name, models.tokenizer, context, reachable)


if __name__ == "__main__":
    from pipeline.service import main

    main("device")
