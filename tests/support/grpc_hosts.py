"""Hosts in one process that talk gRPC over loopback, with the fake pair as models; each can be stopped."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.drivers.clock import WallClock
from serving.drivers.real_time import RealTimeDriver
from serving.drivers.simulator import ComputeResource
from serving.messages import EmitTokens, ForwardWork, GenerationRequest, RequestArrived, SessionCancelled, Work
from serving.runtimes.host import NodeHost
from serving.transport.limits import Limits
from serving.transport.security import Security
from tests.support.fake_pair import LAYERS, FakePair
from tests.support.fake_setup import setup
from tests.support.tcp_proxy import Proxy

LIMITS = Limits(backoff_s=0.02, backoff_max_s=0.1)


class ControlledPair(FakePair):
    """The fake pair with controls to hold its next work and to fail."""

    def __init__(self, engine: Any = None) -> None:
        super().__init__()
        self.engine = engine
        """A real engine, which runs the work instead of the fake pair."""
        self.failing_sessions: set[str] = set()
        """Sessions whose work fails."""
        self.hold, self.resume, self.held, self.num_failures = False, threading.Event(), threading.Event(), 0

    def execute(self, work: Work) -> Any:
        if self.num_failures:
            self.num_failures -= 1
            raise RuntimeError("the chip fails")
        if isinstance(work, ForwardWork) and not self.failing_sessions.isdisjoint(seq.session for seq in work.slices):
            raise RuntimeError("work of this session fails")
        if self.hold:
            self.held.set()
            self.resume.wait(20)
        return (self.engine.execute(work)[0], 0.0) if self.engine else super().execute(work)

    def drop(self, session: str, first: int | None) -> None:
        (self.engine or super()).drop(session, first)

    def move(self, session: str, to: str) -> None:
        (self.engine or super()).move(session, to)

    def copy(self, session: str, to: str, length: int) -> None:
        (self.engine or super()).copy(session, to, length)


class Hidden(dict[str, Any]):
    """The fake pair's hidden states on all hosts: only ids are sent, and receivers prefix them with the sender."""

    def __missing__(self, name: str) -> Any:
        if not name.startswith("@"):
            raise KeyError(name)
        return self[name.partition("/")[2]]


@dataclass
class RunningHost:
    """A running host with its driver."""

    host: NodeHost
    driver: RealTimeDriver
    chip: ControlledPair
    tensors: Any = None
    address: str = ""
    task: "asyncio.Task[None] | None" = None
    delivered: list[EmitTokens] = field(default_factory=list)

    @property
    def node(self) -> Any:
        return self.driver._nodes[self.host.node_names[0]]

    def submit(self, request: GenerationRequest) -> None:
        self.driver.post(self.driver.now(), self.host.node_names[0], RequestArrived(request))

    def cancel(self, session: str) -> None:
        self.driver.post(self.driver.now(), self.host.node_names[0], SessionCancelled(session))

    async def wait_for_end(self, session: str) -> list[EmitTokens]:
        while not any(d.session == session and d.ending for d in self.delivered):
            assert self.task
            if self.task.done():
                self.task.result()
            await asyncio.sleep(0.002)
        return [d for d in self.delivered if d.session == session]

    async def text(self, session: str) -> tuple[int, ...]:
        return tuple(token for d in await self.wait_for_end(session) for token in d.tokens)

    async def end(self, grace_s: float = 0.0) -> None:
        self.chip.resume.set()
        if self.task:
            self.task.cancel()
        await self.host.close(grace_s)
        await asyncio.gather(*filter(None, (self.task,)), return_exceptions=True)
        self.driver.close()


class HostGroup:
    def __init__(
        self,
        policy: str = "sled",
        devices: int = 2,
        timeout_s: float = 5.0,
        linger_s: float = 30.0,
        limits: Limits = LIMITS,
        engines: Callable[[str, Any], Any] | None = None,
        tensors: Callable[[], Any] = lambda: None,
        base: Setup | None = None,
        **how: Any,
    ) -> None:
        self.limits, self._engines, self._tensors = limits, engines, tensors
        self.topology = Topology(base or setup(policy, devices=devices, **how), LAYERS, timeout_s, linger_s)
        self.addresses: dict[str, str] = {}
        """Addresses of the nodes of tiers."""
        self._hidden = Hidden()
        self.hosts: list[RunningHost] = []
        self.proxies: list[Proxy] = []

    async def proxy_to(self, address: str) -> Proxy:
        """A proxy to that address, which a test can break."""
        self.proxies.append(await Proxy(address).start())
        return self.proxies[-1]

    async def cloud(self, address: str = "127.0.0.1:0") -> RunningHost:
        running = self.create("cloud-0")
        running.address = await running.host.listen(address)
        return self.run(running)

    async def node(self, name: str) -> RunningHost:
        """Starts a node of a tier; a restarted node listens at its earlier address."""
        running = self.create(name)
        running.address = self.addresses[name] = await running.host.listen(self.addresses.get(name, "127.0.0.1:0"))
        await running.host.connect({other: self.addresses[other] for other in self.topology.upstream_nodes(name)})
        return self.run(running)

    async def nodes(self) -> dict[str, RunningHost]:
        """Starts all nodes of all tiers."""
        return {name: await self.node(name) for name in self.topology.workers}

    async def device(self, number: int, address: str = "") -> RunningHost:
        """Starts a device, connected to the cloud at that address or to all tier nodes."""
        running, there = self.create(f"device-{number}"), {"cloud-0": address} if address else self.addresses
        await running.host.connect(there)
        await running.host.wait_until_reachable(there, 10)
        return self.run(running)

    def create(self, name: str) -> RunningHost:
        tensors = self._tensors()
        host = NodeHost(self.topology, (name,), tensors, Security(), self.limits, "digest", 997)
        chip = ControlledPair(self._engines(name, tensors) if self._engines else None)
        chip.hidden_states = self._hidden
        running = RunningHost(host, RealTimeDriver(WallClock(), on_error=lambda problem: None), chip, tensors)
        running.driver.add(name, self.topology.create_node(name), ComputeResource(running.chip))
        running.driver.on_emit(lambda deliver, now: running.delivered.append(deliver))
        self.hosts.append(running)
        return running

    def run(self, running: RunningHost) -> RunningHost:
        running.host.start(running.driver)
        running.task = asyncio.create_task(running.driver.run(lambda: False))
        return running


@asynccontextmanager
async def host_group(policy: str = "sled", **how: Any) -> AsyncIterator[HostGroup]:
    """A HostGroup that is closed at the end; the test inside has 30 s."""
    hosts = HostGroup(policy, **how)
    try:
        async with asyncio.timeout(30):
            yield hosts
    finally:
        for running in reversed(hosts.hosts):
            await running.end()
        for proxy in hosts.proxies:
            await proxy.stop()


_RUNNER = asyncio.Runner()
"""One event loop for all tests: gRPC's poller may lose events of a new loop while those of a closed one arrive."""


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    _RUNNER.run(scenario())


def generation_request(session: str, limit: int = 24, **how: Any) -> GenerationRequest:
    return GenerationRequest(
        session, tuple((sum(map(ord, session)) * 31 + k * 7) % 997 for k in range(12)), limit, **how
    )


def origins(delivered: list[EmitTokens]) -> set[str]:
    return {origin for deliver in delivered for origin in deliver.origins}


def delivered_once(delivered: list[EmitTokens]) -> bool:
    """True if every session has at most one ending, and nothing after it."""
    over: set[str] = set()
    for deliver in delivered:
        if deliver.session in over:
            return False
        if deliver.ending:
            over.add(deliver.session)
    return True


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.002)
