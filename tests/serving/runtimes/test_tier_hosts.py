"""Each tier node as its own host over gRPC streams: serving, failure, restart, and cleanup."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from serving.core.queued_request import Task
from serving.deployment.model_loading import load_side
from serving.deployment.queries import UNAVAILABLE_ENGINE
from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.engines.models import ModelConfig, ModelPair
from serving.messages import GenerationRequest, LoadReport
from serving.policy.slots.dispatch import HypSched
from serving.runtimes.host import NodeHost
from serving.transport.security import Security
from tests.support.fake_pair import LAYERS, own_text
from tests.support.fake_setup import pair
from tests.support.grpc_hosts import LIMITS, HostGroup, RunningHost, generation_request, host_group, run, until
from tests.support.simulated_tiers import tiered_setup, tiers
from tests.support.tiny_models import save_checkpoints as checkpoints

NAMES = ("hyperion", "sled", "hat")


STATE = ("queue", "retained_requests", "forwarded", "undeliverable", "running", "quarantined")
"""Fields of a worker that are empty when it has no session."""


def sizes_of_state(party: RunningHost) -> dict[str, int]:
    worker = party.node
    return {name: len(getattr(worker, name)) for name in STATE} | {
        "caches": len(party.chip.caches),
        "cached_lens": len(worker.kv_accounting.cached_lens),
        "reservations": len(worker.reservations),
        "owners": len(worker.session_registry.owners),
    }


async def nothing_is_left(nodes: dict[str, RunningHost]) -> None:
    await until(lambda: not any(n for party in nodes.values() for n in sizes_of_state(party).values()))


async def assert_answered(device: RunningHost, *sessions: str, limit: int = 24) -> None:
    for session in sessions:
        assert await device.text(session) == own_text(generation_request(session).prompt, limit)


async def caught(parties: list[RunningHost]) -> tuple[RunningHost, RunningHost]:
    """The host that holds its work, and the other of the two, which continues."""
    await until(lambda: any(party.chip.held.is_set() for party in parties))
    (busy,) = (party for party in parties if party.chip.held.is_set())
    (other,) = (party for party in parties if party is not busy)
    other.chip.hold = False
    return busy, other


async def start_tiers(hosts: HostGroup, devices: int = 1) -> tuple[dict[str, RunningHost], list[RunningHost]]:
    nodes = await hosts.nodes()
    return nodes, [await hosts.device(i) for i in range(devices)]


@pytest.mark.parametrize("name", NAMES)
def test_hosts_of_three_tiers_work_together(name: str) -> None:
    async def scenario() -> None:
        async with host_group(base=tiered_setup(tiers(2, 2, 1), name)) as hosts:
            nodes, devices = await start_tiers(hosts, 2)
            for i, device in enumerate(devices):
                for j in range(3):
                    device.submit(generation_request(f"s{i}.{j}"))
            for i, device in enumerate(devices):
                await assert_answered(device, *(f"s{i}.{j}" for j in range(3)))
            assert {party.host.node_names[0]: party.host.reachable for party in nodes.values()} == {
                node: {
                    *hosts.topology.devices,
                    *hosts.topology.upstream_nodes(node),
                    *hosts.topology.downstream_nodes(node),
                }
                for node in nodes
            }
            await nothing_is_left(nodes)

    run(scenario)


@pytest.mark.parametrize("tier", ["nano", "nx", "agx"])
@pytest.mark.parametrize("name", ["hyperion", "hat"])
def test_a_node_is_killed_while_it_computes_and_comes_back(name: str, tier: str) -> None:
    async def scenario() -> None:
        async with host_group(base=tiered_setup(tiers(2, 2, 2), name, devices=1)) as hosts:
            nodes, (device,) = await start_tiers(hosts)
            device.submit(generation_request("before"))
            await assert_answered(device, "before")
            here = [nodes[f"{tier}-{i}"] for i in range(2)]
            for party in here:
                party.chip.hold = True
            device.submit(generation_request("s"))
            doomed, other = await caught(here)
            await doomed.end()
            await assert_answered(device, "s")
            assert other.chip.num_tokens_run
            nodes[doomed.host.node_names[0]] = again = await hosts.node(doomed.host.node_names[0])
            await device.host.wait_until_reachable(again.host.node_names, 10)
            for session in ("t", "u"):
                device.submit(generation_request(session))
                await assert_answered(device, session)
            await nothing_is_left(nodes)

    run(scenario)


@pytest.mark.parametrize("tier", ["nano", "nx", "agx"])
def test_a_whole_tier_is_gone_and_comes_back(tier: str) -> None:
    async def scenario() -> None:
        async with host_group(base=tiered_setup(tiers(1, 1, 1), devices=1)) as hosts:
            nodes, (device,) = await start_tiers(hosts)
            node = f"{tier}-0"
            device.submit(generation_request("s", limit=400))
            await until(lambda: len(device.delivered) > 3)
            await nodes[node].end()
            await until(lambda: node not in device.host.reachable)
            device.submit(generation_request("t"))
            nodes[node] = await hosts.node(node)
            await assert_answered(device, "s", limit=400)
            await assert_answered(device, "t")
            await nothing_is_left(nodes)

    run(scenario)


def test_two_tiers_fail_at_once_and_start_again_in_either_order() -> None:
    async def scenario() -> None:
        async with host_group(base=tiered_setup(tiers(2, 1, 1), devices=1)) as hosts:
            nodes, (device,) = await start_tiers(hosts)
            device.submit(generation_request("s", limit=400))
            await until(lambda: len(device.delivered) > 3)
            for node in ("nano-0", "nano-1", "agx-0"):
                await nodes[node].end()
            for node in ("agx-0", "nano-1", "nano-0"):  # the later one dials what is not there yet
                nodes[node] = await hosts.node(node)
            await assert_answered(device, "s", limit=400)
            await nothing_is_left(nodes)

    run(scenario)


@dataclass(frozen=True)
class _OneEach(HypSched):
    """nano-0 sends to nx-0, nano-1 to nx-1."""

    def choose(self, task: Task, reports: Sequence[LoadReport]) -> str:
        names = [report.node for report in reports]
        wanted = f"nx-{task.owner.rpartition('-')[2]}"
        return wanted if wanted in names else names[0]


def test_a_node_off_the_path_is_notified_that_the_session_ended() -> None:
    """From the device itself, which never asked there: nodes of earlier tiers, one of which is dead, did."""

    async def scenario() -> None:
        base = tiered_setup(tiers(2, 2), devices=1, override={"dispatch": _OneEach()})
        async with host_group(base=base, timeout_s=float("inf")) as hosts:
            nodes, (device,) = await start_tiers(hosts)
            later = [nodes["nx-0"], nodes["nx-1"]]
            for party in later:
                party.chip.hold = True
            device.submit(generation_request("s"))
            busy, _ = await caught(later)
            first = next(name for name in ("nano-0", "nano-1") if nodes[name].node.forwarded)
            await nodes.pop(first).end()
            await assert_answered(device, "s")
            busy.chip.hold = False
            busy.chip.resume.set()
            await nothing_is_left(nodes)

    run(scenario)


def test_a_node_refused_by_an_earlier_tier_raises_an_error() -> None:
    async def scenario() -> None:
        topology = Topology(tiered_setup(tiers(1, 1), devices=1), LAYERS)
        hosts = [
            NodeHost(topology, (name,), None, Security(), LIMITS, f"of-{name}", 997) for name in ("nano-0", "nx-0")
        ]
        addresses = [await host.listen("127.0.0.1:0") for host in hosts]
        with pytest.raises(ValueError, match=rf"nano-0 at {addresses[0]} refuses nx-0: .*of-nano-0.*of-nx-0"):
            await hosts[1].connect({"nano-0": addresses[0]})
        for host in hosts:
            await host.close()

    run(scenario)


# The engine.


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return checkpoints(tmp_path_factory.mktemp("models"))


def held(real: dict[str, Path]) -> Setup:
    timing = pair(cloud="llama2_7b")
    models = ModelPair(
        ModelConfig(path=real["device"], timed_architecture=timing.device.timed_architecture),
        ModelConfig(path=real["cloud"], timed_architecture=timing.cloud.timed_architecture),
    )
    return tiered_setup(tiers(2, 2, 1), pair=models)


def test_tier_hosts_load_their_layers_and_write_the_whole_models_text(real: dict[str, Path]) -> None:
    """No store holds a tensor in the end, and no engine a cache. Then also while one of them is killed: a state
    that was under way to it waits in its sender's bounded store for newer ones to push it out.
    """
    from serving.engines.torch.engine import TorchEngine
    from serving.engines.torch.model import MissingLayer, load_model
    from serving.engines.torch.tensor_store import TensorStore

    setup = held(real)

    def engine(name: str, tensors: Any) -> Any:
        if name.startswith("device"):
            return UNAVAILABLE_ENGINE
        return load_side(setup, "cloud", tensors, tier=name.rpartition("-")[0]).cloud

    def asked(session: str) -> GenerationRequest:
        return GenerationRequest(session, (2, 3, 4, 5, 6, 2 + sum(map(ord, session)) % 9), 16)

    async def alone() -> dict[str, tuple[int, ...]]:
        tensors, whole = TensorStore(), load_model(str(real["cloud"]))
        async with host_group(
            "cloud_centric", devices=1, engines=lambda name, _: TorchEngine(whole, tensor_store=tensors)
        ) as hosts:
            cloud = await hosts.cloud()
            device = await hosts.device(0, cloud.address)
            for session in ("a", "b", "c"):
                device.submit(asked(session))
            return {session: await device.text(session) for session in ("a", "b", "c")}

    async def scenario() -> None:
        expected = await alone()
        async with host_group(base=setup, engines=engine, tensors=TensorStore) as hosts:
            nodes, devices = await start_tiers(hosts, 2)
            parts = {name: party.chip.engine.model for name, party in nodes.items()}
            layers = {
                name: [not isinstance(each, MissingLayer) for each in model.layers] for name, model in parts.items()
            }
            assert [sum(layers[name]) for name in nodes] == [3, 3, 3, 3, 2]
            assert [sum(each) for each in zip(*(layers[name] for name in ("nano-0", "nx-1", "agx-0")), strict=True)
                    ] == [1] * 8  # fmt: skip
            assert [name for name, model in parts.items() if not isinstance(model.lm_head, MissingLayer)] == ["agx-0"]
            for i, device in enumerate(devices):
                device.submit(replace(asked("a"), session=f"first{i}"))
                assert await device.text(f"first{i}") == expected["a"]
            await until(lambda: not any(len(party.chip.engine.cache) for party in nodes.values()))
            assert not any(len(party.tensors) for party in (*nodes.values(), *devices))
            for i, device in enumerate(devices):
                for session in expected:
                    device.submit(replace(asked(session), session=f"{session}{i}"))
            await until(lambda: len(devices[0].delivered) > 20)
            doomed = next(name for name in ("nx-0", "nx-1") if nodes[name].node.forwarded)
            await nodes.pop(doomed).end()
            for i, device in enumerate(devices):
                for session, text in expected.items():
                    assert await device.text(f"{session}{i}") == text
            await until(lambda: not any(len(party.chip.engine.cache) for party in nodes.values()))

    run(scenario)
