"""One policy, every driver, one log: every policy of conf/, on a really trained toy pair.

By script (virtual time for live drivers) the simulator, the live driver and the live driver behind real gRPC streams
must say exactly the same; looked up in a trace, the same again; and every log must replay through fresh nodes.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline import api
from pipeline.plan import arguments
from pipeline.run import job_of
from serving.cast import Cast
from serving.drivers.clock import Script
from serving.drivers.live import Live
from serving.drivers.observer import Observer
from serving.messages import Command, Event, Message
from serving.open import open_models, queries
from serving.runtimes.emulated import play
from serving.runtimes.runtime import Models, Query
from serving.scene import Chips, link, populate
from serving.setup import Setup
from serving.transport.dialler import Dialler
from serving.transport.listener import Listener
from serving.users import Users

POLICIES = sorted(file.stem for file in (Path(__file__).parents[1] / "conf" / "policy").glob("*.yaml"))
POLICIES.remove("unset")
SAMPLED = ("sled", "synera")
TOY = ("model=toy", "network=mbps_10", "workload.profiling.prompts=12", "trainer.threads=1", "tracking.uri=none")
RUNNER = asyncio.Runner()
"""One loop for all: gRPC's poller may lose events of a new loop while those of a closed one come in."""
CASES = [(name, 0.0) for name in POLICIES] + [(name, 0.8) for name in SAMPLED if name in POLICIES]


@dataclass
class Log:
    """Who heard what when, and what it said."""

    entries: list[tuple[str, Event, float, tuple[Command, ...]]]

    def handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        self.entries.append((node, event, now, tuple(commands)))

    def ran(self, *_: object) -> None: ...

    def sent(self, *_: object) -> None: ...


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the processes of one test run, which build the toy pair once."""
    return tmp_path_factory.getbasetemp().parent / "experiments"


@cache
def setup_of(policy: str, temperature: float, outputs: Path) -> Setup:
    words = (f"policy={policy}", *TOY, "workload.prompts=6", "workload.devices=3", f"outputs={outputs}")
    with api.composed(*words, f"decoding.temperature={temperature}") as cfg:
        job = job_of(cfg)
        plan = job.plan()
        job.run(plan.goals("profile"))
        serve = plan.serve
        made = arguments(serve, lambda name: job.store.path(serve.inputs[name]))["setup"]
    assert isinstance(made, Setup)
    return made


@dataclass
class Case:
    setup: Setup
    models: Models
    queries: list[Query]

    def emulated(self) -> list[Any]:
        log = Log([])
        play(self.setup, self.models, self.queries, observers=[log])
        return log.entries

    def live(self, through_grpc: bool = False) -> list[Any]:
        log = Log([])
        RUNNER.run(self._live([log], through_grpc))
        return log.entries

    async def _live(self, observers: Sequence[Observer], through_grpc: bool) -> None:
        cast = Cast(self.setup, self.models.cloud_layers)
        live, users = Live(Script(), observers, "hardware"), Users(self.queries, cast.devices)
        populate(live, cast, Chips(cast, self.models, self.queries), (*cast.workers, *cast.devices))
        link(live, cast)
        live.on_deliver(lambda d, now: users.hear(d.session, now, live.post) if d.ending else None)
        users.ask(live.post)
        with_transport = transported(live, cast, self.models) if through_grpc and cast.workers else nothing()
        async for _ in with_transport:
            await asyncio.wait_for(live.run(lambda: False), 60)
        live.close()

    def replays(self, log: list[Any]) -> bool:
        cast = Cast(self.setup, self.models.cloud_layers)
        nodes = {name: cast.node(name) for name in (*cast.workers, *cast.devices)}
        return all(tuple(nodes[name].handle(event, now)) == said for name, event, now, said in log)


async def nothing() -> Any:
    yield


async def transported(live: Live, cast: Cast, models: Models) -> Any:
    """Every message crosses a real stream over loopback, its tensors from one store to another's."""

    class Ears:
        def __init__(self) -> None:
            self.met = asyncio.Event()

        async def heard(self, sender: str, to: str, message: Message) -> None:
            live.heard(to, message)

        def lost(self, nodes: tuple[str, ...]) -> None:
            self.met.clear()

        def joined(self, nodes: tuple[str, ...]) -> None:
            self.met.set()

    near, far = Ears(), Ears()
    listener = Listener(cast.workers, far, models.cloud.blobs, digest=cast.digest)  # type: ignore[attr-defined]
    address = await listener.start()
    dialler = Dialler(cast.devices, near, models.device.blobs, address, digest=cast.digest)  # type: ignore[attr-defined]
    await dialler.start()
    await asyncio.wait_for(asyncio.gather(near.met.wait(), far.met.wait()), 10)
    for name in cast.workers:
        live.carry(name, dialler.send)
    for name in cast.devices:
        live.carry(name, listener.send)
    try:
        yield
    finally:
        await dialler.stop(1.0)
        await listener.stop(1.0)


@cache
def case(policy: str, temperature: float, outputs: Path) -> Case:
    setup = setup_of(policy, temperature, outputs)
    models = open_models(setup.pair.device, setup.pair.cloud)
    asked = queries(setup.workload, setup.decoding, setup.seed, setup.devices, models.tokenizer)
    return Case(setup, models, asked)


@cache
def reference(policy: str, temperature: float, outputs: Path) -> list[Any]:
    return case(policy, temperature, outputs).emulated()


@pytest.mark.parametrize(("policy", "temperature"), CASES)
def test_every_driver_says_the_same(policy: str, temperature: float, outputs: Path) -> None:
    one = case(policy, temperature, outputs)
    expected = reference(policy, temperature, outputs)
    assert len(expected) > 50
    assert same(one.live(), expected)
    assert same(one.live(through_grpc=True), expected)
    assert one.replays(expected)


def same(log: list[Any], expected: list[Any]) -> bool:
    """Tensors have serial numbers that go on from run to run, and a transport puts the sender before them."""
    return counted(log) == counted(expected)


def counted(log: list[Any]) -> list[str]:
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return numbers.setdefault(found[1], f"id='{len(numbers)}'")

    return [re.sub(r"id='[^']*?((?:odds|hidden)/[^']*)'", number, repr(entry)) for entry in log]
