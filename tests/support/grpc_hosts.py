"""Hosts of one process that really talk gRPC over loopback, with the fake pair for models; parts can be killed."""

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


class Gate(FakePair):
    """The fake pair with controls to hold its next work, and to fail."""

    def __init__(self, engine: Any = None) -> None:
        super().__init__()
        self.engine = engine
        """A real one, which answers instead."""
        self.ill: set[str] = set()
        """Sessions whose work fails."""
        self.hold, self.go, self.held, self.broken = False, threading.Event(), threading.Event(), 0

    def execute(self, work: Work) -> Any:
        if self.broken:
            self.broken -= 1
            raise RuntimeError("the chip is on fire")
        if isinstance(work, ForwardWork) and not self.ill.isdisjoint(rows.session for rows in work.slices):
            raise RuntimeError("this one is poison")
        if self.hold:
            self.held.set()
            self.go.wait(20)
        return (self.engine.execute(work)[0], 0.0) if self.engine else super().execute(work)

    def drop(self, session: str, first: int | None) -> None:
        (self.engine or super()).drop(session, first)


class Hidden(dict[str, Any]):
    """The fake pair's hidden states, of all parties: their names alone travel, and get the sender's before them."""

    def __missing__(self, name: str) -> Any:
        if not name.startswith("@"):
            raise KeyError(name)
        return self[name.partition("/")[2]]


@dataclass
class Party:
    """A host with its driver, running."""

    host: NodeHost
    live: RealTimeDriver
    chip: Gate
    tensors: Any = None
    address: str = ""
    task: "asyncio.Task[None] | None" = None
    delivered: list[EmitTokens] = field(default_factory=list)

    @property
    def node(self) -> Any:
        return self.live._nodes[self.host.node_names[0]]

    def ask(self, call: GenerationRequest) -> None:
        self.live.post(self.live.now(), self.host.node_names[0], RequestArrived(call))

    def leave(self, session: str) -> None:
        self.live.post(self.live.now(), self.host.node_names[0], SessionCancelled(session))

    async def answer(self, session: str) -> list[EmitTokens]:
        while not any(d.session == session and d.ending for d in self.delivered):
            assert self.task
            if self.task.done():
                self.task.result()
            await asyncio.sleep(0.002)
        return [d for d in self.delivered if d.session == session]

    async def text(self, session: str) -> tuple[int, ...]:
        return tuple(token for d in await self.answer(session) for token in d.tokens)

    async def end(self, grace_s: float = 0.0) -> None:
        self.chip.go.set()
        if self.task:
            self.task.cancel()
        await self.host.close(grace_s)
        await asyncio.gather(*filter(None, (self.task,)), return_exceptions=True)
        self.live.close()


class Rig:
    def __init__(
        self,
        policy: str = "sled",
        devices: int = 2,
        timeout_s: float = 5.0,
        linger_s: float = 30.0,
        limits: Limits = LIMITS,
        engines: Callable[[str, Any], Any] | None = None,
        tensors: Callable[[], Any] = lambda: None,
        made: Setup | None = None,
        **how: Any,
    ) -> None:
        self.limits, self._engines, self._tensors = limits, engines, tensors
        self.topology = Topology(made or setup(policy, devices=devices, **how), LAYERS, timeout_s, linger_s)
        self.addresses: dict[str, str] = {}
        """Of nodes of tiers."""
        self._hidden = Hidden()
        self.parties: list[Party] = []
        self.proxies: list[Proxy] = []

    async def way(self, address: str) -> Proxy:
        """A proxy before that address, which a test can break."""
        self.proxies.append(await Proxy(address).start())
        return self.proxies[-1]

    async def cloud(self, address: str = "127.0.0.1:0") -> Party:
        party = self._party("cloud-0")
        party.address = await party.host.listen(address)
        return self._run(party)

    async def node(self, name: str) -> Party:
        """A node of a tier; a restarted one listens where it did before."""
        party = self._party(name)
        party.address = self.addresses[name] = await party.host.listen(self.addresses.get(name, "127.0.0.1:0"))
        await party.host.connect({other: self.addresses[other] for other in self.topology.upstream_nodes(name)})
        return self._run(party)

    async def nodes(self) -> dict[str, Party]:
        """All of all tiers."""
        return {name: await self.node(name) for name in self.topology.workers}

    async def device(self, number: int, address: str = "") -> Party:
        """A device connected to the cloud at that address, or to all tier nodes."""
        party, there = self._party(f"device-{number}"), {"cloud-0": address} if address else self.addresses
        await party.host.connect(there)
        await party.host.wait_until_reachable(there, 10)
        return self._run(party)

    def _party(self, name: str) -> Party:
        tensors = self._tensors()
        host = NodeHost(self.topology, (name,), tensors, Security(), self.limits, "digest", 997)
        chip = Gate(self._engines(name, tensors) if self._engines else None)
        chip.blobs = self._hidden
        party = Party(host, RealTimeDriver(WallClock(), on_error=lambda problem: None), chip, tensors)
        party.live.add(name, self.topology.create_node(name), ComputeResource(party.chip))
        party.live.on_emit(lambda deliver, now: party.delivered.append(deliver))
        self.parties.append(party)
        return party

    def _run(self, party: Party) -> Party:
        party.host.start(party.live)
        party.task = asyncio.create_task(party.live.run(lambda: False))
        return party


@asynccontextmanager
async def rig(policy: str = "sled", **how: Any) -> AsyncIterator[Rig]:
    """A Rig that is closed at the end; the test inside has 30 s."""
    made = Rig(policy, **how)
    try:
        async with asyncio.timeout(30):
            yield made
    finally:
        for party in reversed(made.parties):
            await party.end()
        for proxy in made.proxies:
            await proxy.stop()


_RUNNER = asyncio.Runner()
"""One loop for all: gRPC's poller may lose events of a new loop while those of a closed one come in."""


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    _RUNNER.run(scenario())


def call(session: str, limit: int = 24, **how: Any) -> GenerationRequest:
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
