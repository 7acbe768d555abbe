"""Ended sessions leave no state in nodes, caches, stores, drivers, transports or tasks."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.messages import GenerationRequest
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.link_loss import LinkLoss
from tests.support.grpc_hosts import LIMITS, HostGroup, RunningHost, generation_request, host_group, run, until
from tests.support.remaining_state import in_chip, in_driver, in_node, in_streams, num_transport_sessions
from tests.support.tiny_models import save_checkpoints


def remaining_state_of(cloud: RunningHost) -> dict[str, int]:
    """The state that a cloud holds for devices."""
    names = {"transport sessions": num_transport_sessions(cloud.host)}
    chip = in_chip(cloud.chip, cloud.tensors)
    return in_node(cloud.node) | chip | in_driver(cloud.driver) | in_streams(cloud.host) | names


def has_no_state(cloud: RunningHost) -> bool:
    return not any(remaining_state_of(cloud).values())


def has_no_sessions(device: RunningHost) -> bool:
    return not any((in_node(device.node) | in_chip(device.chip, device.tensors)).values())


async def submit_all(devices: list[RunningHost], each: int, first: int = 0) -> None:
    for i, device in enumerate(devices):
        for j in range(first, first + each):
            device.submit(generation_request(f"s{i}.{j}", limit=8))
    for i, device in enumerate(devices):
        for j in range(first, first + each):
            await device.wait_for_end(f"s{i}.{j}")


async def start_cloud_and_devices(hosts: HostGroup, n: int = 2) -> tuple[RunningHost, list[RunningHost]]:
    cloud = await hosts.cloud()
    return cloud, [await hosts.device(i, cloud.address) for i in range(n)]


@pytest.mark.parametrize("name", ["sled", "cloud_centric", "synera"])
def test_ended_sessions_leave_no_state(name: str) -> None:
    async def scenario() -> None:
        async with host_group(name) as hosts:
            cloud, devices = await start_cloud_and_devices(hosts)
            await submit_all(devices, 2)
            tasks = len(asyncio.all_tasks())
            await submit_all(devices, 12, first=2)
            await until(lambda: has_no_state(cloud))
            await until(lambda: all(map(has_no_sessions, devices)))  # caches go on the chip's own thread
            assert len(asyncio.all_tasks()) == tasks
            for device in devices:
                assert len(device.driver._heap) <= 100  # one timer a session, until it is due

    run(scenario)


def test_messages_after_a_release_open_no_session() -> None:
    async def scenario() -> None:
        async with host_group("sled") as hosts:
            cloud, (device,) = await start_cloud_and_devices(hosts, 1)
            carry, said = device.driver._transmitters["cloud-0"], []
            device.driver.add_remote("cloud-0", lambda *what: (said.append(what), carry(*what))[1])
            await submit_all([device], 3)
            await until(lambda: has_no_state(cloud))
            for _, to, message in tuple(said):
                cloud.driver.receive(to, message)
            await until(lambda: not cloud.driver._heap and not cloud.node.running)
            await until(lambda: has_no_state(cloud))  # caches go on the chip's own thread
            assert has_no_state(cloud)

    run(scenario)


def test_a_release_lost_with_its_link_is_repeated() -> None:
    async def scenario() -> None:
        how = {"link_loss": LinkLoss("local"), "kv_cache": PrefixCaching()}
        async with host_group("sled", linger_s=0.05, override=how) as hosts:
            cloud = await hosts.cloud()
            way = await hosts.proxy_to(cloud.address)
            device = await hosts.device(0, way.address)
            device.submit(generation_request("s", limit=400))
            await until(lambda: len(device.delivered) > 3)
            way.cut()
            assert sum(len(d.tokens) for d in await device.wait_for_end("s")) == 400
            way.mend()
            await device.host.wait_until_reachable(["cloud-0"], 10)
            await until(lambda: nothing_but_transport(cloud))

    run(scenario)


def nothing_but_transport(cloud: RunningHost) -> bool:
    """A transport keeps the name of a session for its owner until it starts again."""
    return not any(n for name, n in remaining_state_of(cloud).items() if name not in ("transport sessions", "events"))


def test_sessions_that_a_device_never_releases_are_bounded() -> None:
    async def scenario() -> None:
        limits = replace(LIMITS, sessions_per_node=4)
        async with host_group("sled", limits=limits, override={"kv_cache": PrefixCaching()}) as hosts:
            cloud, (device,) = await start_cloud_and_devices(hosts, 1)
            carry = device.driver._transmitters["cloud-0"]
            device.driver.add_remote(
                "cloud-0", lambda *what: None if type(what[2]).__name__ == "Release" else carry(*what)
            )
            await submit_all([device], 9)
            await until(lambda: len(cloud.chip.caches) <= hosts.limits.sessions_per_node)
            assert len(cloud.node.session_registry.owners) <= hosts.limits.sessions_per_node
            assert len(cloud.node.kv_accounting.cached_lens) <= hosts.limits.sessions_per_node

    run(scenario)


def test_forgotten_conversations_leave_no_state() -> None:
    async def scenario() -> None:
        async with host_group("sled", override={"kv_cache": PrefixCaching()}) as hosts:
            cloud, (device,) = await start_cloud_and_devices(hosts, 1)
            for session in ("a", "b"):
                device.submit(generation_request(session, keep_cache=True))
                await device.wait_for_end(session)
            assert set(device.node.idle_sessions) == {"a", "b"}
            assert len(cloud.chip.caches) == 2
            device.cancel("b")  # the one that was served last
            device.cancel("a")
            await until(lambda: has_no_state(cloud) and not device.node.idle_sessions and not device.chip.caches)

    run(scenario)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_checkpoints(tmp_path_factory.mktemp("checkpoints"))


def test_the_engines_caches_and_stores_are_empty_after_links_broke_and_the_cloud_failed(
    checkpoints: dict[str, Path],
) -> None:
    from serving.engines.torch.engine import TorchEngine
    from serving.engines.torch.model import load_model
    from serving.engines.torch.tensor_store import TensorStore

    models = {side: load_model(str(checkpoints[side])) for side in ("device", "cloud")}

    def engine(name: str, tensors: Any) -> TorchEngine:
        return TorchEngine(models[name.split("-")[0]], tensor_store=tensors)

    def asked(session: str, limit: int = 16) -> GenerationRequest:
        return GenerationRequest(session, (2, 3, 4, 5, 6), limit)

    async def scenario() -> None:
        how: Any = {"link_loss": LinkLoss("wait"), "kv_cache": PrefixCaching()}
        async with host_group("sled", linger_s=0.05, engines=engine, tensors=TensorStore, override=how) as at_work:
            cloud = await at_work.cloud()
            way = await at_work.proxy_to(cloud.address)
            device, other = await at_work.device(0, way.address), await at_work.device(1, cloud.address)
            device.submit(asked("calm"))
            own = await device.text("calm")
            for i in range(6):
                device.submit(asked(f"a{i}"))
                other.submit(asked(f"b{i}"))
            await until(lambda: bool(cloud.chip.engine.cache))
            way.cut()
            cloud.chip.num_failures = 2
            await until(lambda: not device.host.reachable)
            way.mend()
            for i in range(6):
                assert await device.text(f"a{i}") == own
                assert await other.text(f"b{i}") == own
            await until(lambda: not any(len(each.chip.engine.cache) for each in (cloud, device, other)))
            assert not any(len(each.tensors) for each in (cloud, device, other))

    run(scenario)
