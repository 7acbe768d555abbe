"""`python -m serving.cloud +policy=synera ...`: a cloud that listens for its devices until it is told to stop.

Give it the same words as its devices: both sides refuse each other when they mean different things.
"""

import asyncio

from serving.cast import Cast
from serving.drivers.clock import Wall
from serving.drivers.live import Live
from serving.scene import Chips, link, populate
from serving.service import Service
from serving.setup import Setup
from serving.stopping import told_to_stop


def run(setup: Setup, service: Service, accelerator: str = "cpu") -> None:
    """Serves until SIGINT or SIGTERM. Raises ValueError for a policy that has no cloud, or an address in use."""
    if not setup.placed:
        raise ValueError(f"policy {setup.policy.name} places nothing in a cloud; there is nothing to serve")
    asyncio.run(_run(setup, service, accelerator))


async def _run(setup: Setup, service: Service, accelerator: str) -> None:
    from serving.engine.blobs import Blobs
    from serving.host import Host
    from serving.open import open_side

    blobs = Blobs()
    models = open_side(setup.pair, "cloud", blobs, accelerator)
    cast = Cast(setup, models.cloud_layers)
    names = cast.workers[:1]
    host = Host(cast, names, blobs, service.security, service.limits, cast.digest)
    live = Live(Wall(), pace=service.pace)
    populate(live, cast, Chips(cast, models, ()), names)
    if service.shaped:
        link(live, cast)
    stop = told_to_stop(live.stir)
    try:
        address = await host.listen(service.cloud)
        host.play(live)
        print(f"cloud: {setup.pair.cloud.where} listens on {address}", flush=True)
        await live.run(stop.is_set)
    finally:
        await host.close(grace_s=5.0)
        live.close()


if __name__ == "__main__":
    from pipeline.service import main

    main("cloud")
