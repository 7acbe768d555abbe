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
from serving.deployment.topology import Topology
from serving.deployment.wiring import ChipFactory, connect_nodes
from serving.drivers.clock import WallClock
from serving.drivers.real_time import RealTimeDriver
from serving.frontend.health import CloudStats
from serving.frontend.service_options import ServiceOptions, deployment_digest
from serving.frontend.shutdown import run_until_stopped, stop_signal
from serving.hardware.executor import FatalWorkError, TransientWorkError
from serving.nodes.worker import Worker
from serving.runtimes.host import NodeHost

if TYPE_CHECKING:
    from serving.frontend.health import HealthServer

log = logging.getLogger(__name__)

_POLL_S = 0.01
"""How often a cloud that is to stop looks whether it has answered all."""


@dataclass(frozen=True)
class CloudConfig:
    """Raises ValueError for a policy that has no cloud, for nodes of tiers of which nobody said where they are or which
    of them this is, or for a token that anybody could read.
    """

    setup: Setup
    service: ServiceOptions

    def __post_init__(self) -> None:
        if not self.setup.uses_target:
            raise ValueError(
                f"policy {self.setup.policy.name} places nothing in a cloud: there is nothing to serve. Start the "
                "device alone, or choose another policy"
            )
        cast = Topology(self.setup, self.setup.pair.cloud.timed_architecture.layers)
        self.service.local_nodes(cast)
        security = self.service.security
        for address in dict.fromkeys(self.service.addresses(cast).values()):
            security.check_token_is_protected(address, security.certificate is not None)


def run(config: CloudConfig, accelerator: str = "cpu") -> None:
    """Serves until SIGINT or SIGTERM. Raises ValueError for an address in use, for a node of an earlier tier that
    refuses this one, and when what executes here is broken for good.
    """
    try:
        asyncio.run(_run(config.setup, config.service, accelerator))
    except FatalWorkError as broken:
        raise ValueError(str(broken)) from broken


async def _run(setup: Setup, service: ServiceOptions, accelerator: str) -> None:
    from serving.deployment.model_loading import load_side, num_layers
    from serving.engines.torch.tensor_store import TensorStore
    from serving.frontend.health import HealthServer

    stop = stop_signal()
    limits = replace(service.limits, max_tokens=context_tokens(setup, service.context_tokens))
    blobs = TensorStore()
    cast = Topology(setup, num_layers(setup.pair.cloud))
    names, addresses = service.local_nodes(cast), service.addresses(cast)
    tier = cast.tier_of[names[0]] if setup.hardware.tiers else None
    models = load_side(setup, "cloud", blobs, accelerator, limits.max_tokens, tier)
    chips = ChipFactory(cast, models, ())
    workers = [node for node in map(cast.create_node, names) if isinstance(node, Worker)]
    census = CloudStats(*workers)
    host = NodeHost(cast, names, blobs, service.security, limits, deployment_digest(cast), len(models.tokenizer))
    live = RealTimeDriver(WallClock(), [census], service.pace, _error_handler(census))
    for worker in workers:
        live.add(worker.name, worker, chips(worker.name))
    if service.shaped:
        connect_nodes(live, cast)
    async with AsyncExitStack() as stack:
        stack.callback(models.close)
        stack.callback(live.close)
        stack.push_async_callback(host.close, service.grace_s)
        address = await _listen(host, addresses[names[0]], f"nodes.{names[0]}" if tier else "cloud")
        await host.connect({node: addresses[node] for node in cast.upstream_nodes(names[0])})
        where = await _start_health_server(service, HealthServer(census, lambda: len(host.reachable)), stack)
        host.start(live)
        print(
            f"{names[0] if tier else 'cloud'}: {setup.pair.cloud.token_source} listens on {address}{where}", flush=True
        )
        await run_until_stopped(live, stop, lambda: _drained(workers, service.grace_s))


async def _drained(workers: Sequence[Worker], grace_s: float) -> None:
    """What was asked is answered, as far as that is done in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            while any(worker.queue or worker.running for worker in workers):
                await asyncio.sleep(_POLL_S)


def _error_handler(stats: CloudStats) -> Callable[[Exception], None]:
    def told(problem: Exception) -> None:
        stats.errors += 1
        if isinstance(problem, TransientWorkError):
            log.error("%s", problem)
            return
        log.error("an error in the cloud; what it happened in begins anew", exc_info=problem)

    return told


async def _listen(host: NodeHost, address: str, option: str) -> str:
    try:
        return await host.listen(address)
    except RuntimeError as problem:
        raise ValueError(
            f"cannot listen on {address}; is another cloud running there? Choose another service.{option}"
        ) from problem


async def _start_health_server(service: ServiceOptions, server: "HealthServer", stack: AsyncExitStack) -> str:
    if service.health.port is None:
        return ""
    port = await server.serve(service.health.host, service.health.port)
    stack.push_async_callback(server.stop)
    return f", and tells how it is on http://{service.health.host}:{port}/readyz"


if __name__ == "__main__":
    from pipeline.command.service import main

    main("cloud", __doc__)
