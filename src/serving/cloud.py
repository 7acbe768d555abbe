"""`python -m serving.cloud +policy=synera ...`: a cloud that listens for its devices until it is told to stop.

Give it the same words as its devices: both sides refuse each other when they mean different things.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from serving.deployment.setup import Setup, context_tokens
from serving.deployment.topology import Cast
from serving.deployment.wiring import Chips, link
from serving.drivers.clock import Wall
from serving.drivers.real_time import Live
from serving.frontend.health import Census
from serving.frontend.service_options import Service, digest
from serving.frontend.shutdown import drive, told_to_stop
from serving.hardware.executor import BrokenError, OutageError
from serving.nodes.worker import Worker
from serving.runtimes.host import Host

if TYPE_CHECKING:
    from serving.frontend.health import Health

log = logging.getLogger(__name__)

_LOOK_S = 0.01
"""How often a cloud that is to stop looks whether it has answered all."""


@dataclass(frozen=True)
class Cloud:
    """Raises ValueError for a policy that has no cloud, for nodes of tiers of which nobody said where they are or which
    of them this is, or for a token that anybody could read.
    """

    setup: Setup
    service: Service

    def __post_init__(self) -> None:
        if not self.setup.placed:
            raise ValueError(
                f"policy {self.setup.policy.name} places nothing in a cloud: there is nothing to serve. Start the "
                "device alone, or choose another policy"
            )
        cast = Cast(self.setup, self.setup.pair.cloud.timing.layers)
        self.service.place(cast)
        security = self.service.security
        for address in dict.fromkeys(self.service.addresses(cast).values()):
            security.check(address, security.certificate is not None)


def run(cloud: Cloud, accelerator: str = "cpu") -> None:
    """Serves until SIGINT or SIGTERM. Raises ValueError for an address in use, for a node of an earlier tier that
    refuses this one, and when what executes here is broken for good.
    """
    try:
        asyncio.run(_run(cloud.setup, cloud.service, accelerator))
    except BrokenError as broken:
        raise ValueError(str(broken)) from broken


async def _run(setup: Setup, service: Service, accelerator: str) -> None:
    from serving.deployment.model_loading import depth, open_side
    from serving.engines.torch.tensor_store import Blobs
    from serving.frontend.health import Health

    stop = told_to_stop()
    limits = replace(service.limits, max_tokens=context_tokens(setup, service.context_tokens))
    blobs = Blobs()
    cast = Cast(setup, depth(setup.pair.cloud))
    names, addresses = service.place(cast), service.addresses(cast)
    tier = cast.tier_of[names[0]] if setup.hardware.tiers else None
    models = open_side(setup, "cloud", blobs, accelerator, limits.max_tokens, tier)
    chips = Chips(cast, models, ())
    workers = [node for node in map(cast.node, names) if isinstance(node, Worker)]
    census = Census(*workers)
    host = Host(cast, names, blobs, service.security, limits, digest(cast), len(models.tokenizer))
    live = Live(Wall(), [census], service.pace, _survived(census))
    for worker in workers:
        live.add(worker.name, worker, chips(worker.name))
    if service.shaped:
        link(live, cast)
    async with AsyncExitStack() as stack:
        stack.callback(models.close)
        stack.callback(live.close)
        stack.push_async_callback(host.close, service.grace_s)
        address = await _listening(host, addresses[names[0]], f"nodes.{names[0]}" if tier else "cloud")
        await host.dial({node: addresses[node] for node in cast.before(names[0])})
        where = await _health(service, Health(census, lambda: len(host.reachable)), stack)
        host.play(live)
        print(f"{names[0] if tier else 'cloud'}: {setup.pair.cloud.tells} listens on {address}{where}", flush=True)
        await drive(live, stop, lambda: _drained(workers, service.grace_s))


async def _drained(workers: Sequence[Worker], grace_s: float) -> None:
    """What was asked is answered, as far as that is done in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            while any(worker.queue or worker.running for worker in workers):
                await asyncio.sleep(_LOOK_S)


def _survived(census: Census) -> Callable[[Exception], None]:
    def told(problem: Exception) -> None:
        census.errors += 1
        if isinstance(problem, OutageError):
            log.error("%s", problem)
            return
        log.error("an error in the cloud; what it happened in begins anew", exc_info=problem)

    return told


async def _listening(host: Host, address: str, option: str) -> str:
    try:
        return await host.listen(address)
    except RuntimeError as problem:
        raise ValueError(
            f"cannot listen on {address}; is another cloud running there? Choose another service.{option}"
        ) from problem


async def _health(service: Service, health: "Health", stack: AsyncExitStack) -> str:
    if service.health.port is None:
        return ""
    port = await health.serve(service.health.host, service.health.port)
    stack.push_async_callback(health.stop)
    return f", and tells how it is on http://{service.health.host}:{port}/readyz"


if __name__ == "__main__":
    from pipeline.command.service import main

    main("cloud", __doc__)
