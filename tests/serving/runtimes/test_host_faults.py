"""Failures of hosts: no request hangs, no token is delivered twice, and other devices are served."""

import asyncio
from dataclasses import replace

import pytest

from serving.messages import Message
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.link_loss import LinkLoss
from tests.support.fake_pair import own_text
from tests.support.fake_setup import setup
from tests.support.grpc_hosts import (
    LIMITS,
    RunningHost,
    delivered_once,
    generation_request,
    host_group,
    origins,
    run,
    until,
)
from tests.support.policies import POLICIES

REMOTE = [name for name in POLICIES if name != "edge_centric"]


@pytest.mark.parametrize("name", REMOTE)
def test_hosts_serve_every_policy_together(name: str) -> None:
    async def scenario() -> None:
        async with host_group(name) as hosts:
            cloud = await hosts.cloud()
            devices = [await hosts.device(i, cloud.address) for i in range(2)]
            for i, device in enumerate(devices):
                for j in range(3):
                    device.submit(generation_request(f"s{i}.{j}"))
            for i, device in enumerate(devices):
                for j in range(3):
                    text = await device.text(f"s{i}.{j}")
                    if name != "synera":
                        assert text == own_text(generation_request(f"s{i}.{j}").prompt, 24)
                    assert len(text) == 24

    run(scenario)


@pytest.mark.parametrize("action", ["wait", "local"])
def test_the_cloud_dies_during_a_verification_and_comes_back_empty(action: str) -> None:
    async def scenario() -> None:
        async with host_group("sled", override={"link_loss": LinkLoss(action), "kv_cache": PrefixCaching()}) as hosts:
            cloud = await hosts.cloud()
            device = await hosts.device(0, cloud.address)
            cloud.chip.hold = True
            device.submit(generation_request("s"))
            await asyncio.to_thread(cloud.chip.held.wait, 10)
            await cloud.end()
            if action == "local":
                assert len(await device.text("s")) == 24
                assert origins(device.delivered) == {"offline"}
            await hosts.cloud(cloud.address)
            await device.host.wait_until_reachable(["cloud-0"], 10)
            device.submit(generation_request("t"))
            assert await device.text("t") == own_text(generation_request("t").prompt, 24)
            if action == "wait":
                assert await device.text("s") == own_text(generation_request("s").prompt, 24)
            assert delivered_once(device.delivered)

    run(scenario)


def test_the_cloud_frees_the_state_of_a_dead_device_and_serves_others() -> None:
    async def scenario() -> None:
        async with host_group("cloud_centric", linger_s=0.05) as hosts:
            cloud = await hosts.cloud()
            doomed, other = [await hosts.device(i, cloud.address) for i in range(2)]
            doomed.submit(generation_request("s", limit=4000))
            while not doomed.delivered:
                await asyncio.sleep(0.002)
            await doomed.end()
            other.submit(generation_request("t"))
            assert await other.text("t") == own_text(generation_request("t").prompt, 24)
            await until(lambda: not cloud.chip.caches and not cloud.node.kv_accounting.cached_lens)
            assert not cloud.node.queue
            assert not cloud.node.session_registry.owners

    run(scenario)


def test_a_restarted_device_may_use_the_same_session_names() -> None:
    async def scenario() -> None:
        async with host_group("sled", timeout_s=float("inf"), override={"kv_cache": PrefixCaching()}) as hosts:
            cloud = await hosts.cloud()
            device = await hosts.device(0, cloud.address)
            device.submit(generation_request("over"))
            await device.wait_for_end("over")
            device.submit(generation_request("s", limit=4000))
            await until(lambda: len(device.delivered) > 20)
            await device.end()
            device = await hosts.device(0, cloud.address)
            for session in ("s", "over"):
                device.submit(generation_request(session))
                assert await device.text(session) == own_text(generation_request(session).prompt, 24)

    run(scenario)


def test_a_device_dies_while_the_cloud_computes_for_it() -> None:
    async def scenario() -> None:
        async with host_group("sled", linger_s=0.05) as hosts:
            cloud = await hosts.cloud()
            doomed, other = [await hosts.device(i, cloud.address) for i in range(2)]
            cloud.chip.hold = True
            doomed.submit(generation_request("s"))
            await asyncio.to_thread(cloud.chip.held.wait, 10)
            other.submit(generation_request("t"))
            await doomed.end()
            await until(lambda: cloud.host.reachable == {"device-1"} and "s" not in cloud.node.session_registry.owners)
            cloud.chip.hold = False
            cloud.chip.resume.set()
            assert await other.text("t") == own_text(generation_request("t").prompt, 24)
            await until(
                lambda: not cloud.chip.caches and not cloud.node.session_registry.owners and not cloud.node.running
            )

    run(scenario)


@pytest.mark.parametrize("gone", ["the cloud starts again", "the lease of the device ends"])
def test_a_conversation_continues_after_its_cache_is_lost(gone: str) -> None:
    async def scenario() -> None:
        how = {"link_loss": LinkLoss("wait"), "kv_cache": PrefixCaching()}
        async with host_group("sled", timeout_s=float("inf"), linger_s=0.02, override=how) as hosts:
            cloud = await hosts.cloud()
            way = await hosts.proxy_to(cloud.address)
            device = await hosts.device(0, way.address)
            device.submit(generation_request("s", keep_cache=True))
            first = await device.text("s")
            prompt = (*generation_request("s").prompt, *first, 5)
            if gone == "the cloud starts again":
                await cloud.end()
                cloud = await hosts.cloud(cloud.address)
            else:
                way.cut()
                await until(lambda: not cloud.chip.caches and not cloud.node.session_registry.owners)
                way.mend()
            device.delivered.clear()
            device.submit(replace(generation_request("s", keep_cache=True), prompt=prompt))
            assert await device.text("s") == own_text(prompt, 24)

    run(scenario)


def test_a_session_released_to_make_room_continues() -> None:
    async def scenario() -> None:
        limits = replace(LIMITS, sessions_per_node=2)
        async with host_group(
            "sled", timeout_s=float("inf"), limits=limits, override={"kv_cache": PrefixCaching()}
        ) as hosts:
            cloud = await hosts.cloud()
            device = await hosts.device(0, cloud.address)
            for session in ("a", "b", "c"):
                device.submit(generation_request(session, keep_cache=True))
                await device.wait_for_end(session)
            assert "a" in cloud.node.session_registry.released
            device.delivered.clear()
            device.submit(generation_request("a", keep_cache=True))
            assert await device.text("a") == own_text(generation_request("a").prompt, 24)

    run(scenario)


def test_running_and_queued_sessions_released_to_make_room_start_again() -> None:
    async def scenario() -> None:
        limits, base = replace(LIMITS, sessions_per_node=2), setup("sled", limits={"max_concurrency": 2})
        async with host_group(base=base, timeout_s=float("inf"), limits=limits) as hosts:
            cloud = await hosts.cloud()
            device = await hosts.device(0, cloud.address)
            cloud.chip.hold = True
            device.submit(generation_request("a"))
            await until(lambda: cloud.chip.held.is_set())
            device.submit(generation_request("b"))
            await until(lambda: "b" in cloud.node.queue)
            released = cloud.node.session_registry.released
            asked = cloud.node.queue["b"][0].request
            third = replace(asked, slice=replace(asked.slice, session="c"))
            device.driver._transmitters["cloud-0"]("device-0", "cloud-0", third)  # which makes a, and so b, start again
            await until(lambda: "a" in cloud.node.queue and "b" in cloud.node.queue and "c" in released)
            cloud.chip.hold = False
            cloud.chip.resume.set()
            for session in ("a", "b"):
                assert await device.text(session) == own_text(generation_request(session).prompt, 24)

    run(scenario)


def test_duplicate_and_late_messages_change_nothing() -> None:
    async def scenario() -> None:
        async with host_group("sled") as hosts:
            cloud = await hosts.cloud()
            device = await hosts.device(0, cloud.address)
            repeat(device, "cloud-0")
            repeat(cloud, "device-0")
            for session in ("a", "b", "c"):
                device.submit(generation_request(session))
            for session in ("a", "b", "c"):
                assert await device.text(session) == own_text(generation_request(session).prompt, 24)
            assert delivered_once(device.delivered)

    run(scenario)


def test_a_failing_chip_costs_an_attempt_and_not_the_server() -> None:
    async def scenario() -> None:
        async with host_group("sled") as hosts:
            cloud = await hosts.cloud()
            device = await hosts.device(0, cloud.address)
            cloud.chip.num_failures = 2
            device.submit(generation_request("s"))
            assert await device.text("s") == own_text(generation_request("s").prompt, 24)
            assert cloud.chip.num_failures == 0

    run(scenario)


def test_an_error_of_the_scheduler_costs_an_attempt_and_not_the_session() -> None:
    async def scenario() -> None:
        async with host_group("sled", timeout_s=float("inf")) as hosts:
            cloud = await hosts.cloud()
            device = await hosts.device(0, cloud.address)
            pick, errors = cloud.node.pick_batch, [ZeroDivisionError("no batch")]

            def pick_after_an_error(*offered: object) -> object:
                if errors:
                    raise errors.pop()
                return pick(*offered)

            cloud.node.pick_batch = pick_after_an_error
            device.submit(generation_request("s"))
            assert await device.text("s") == own_text(generation_request("s").prompt, 24)
            assert not errors
            assert not cloud.node.pending_errors

    run(scenario)


@pytest.mark.parametrize("action", ["wait", "local", "fail"])
def test_a_cloud_that_always_fails_does_not_block_devices(action: str) -> None:
    async def scenario() -> None:
        async with host_group("sled", override={"link_loss": LinkLoss(action)}) as hosts:
            cloud = await hosts.cloud()
            device = await hosts.device(0, cloud.address)
            cloud.chip.num_failures = 10_000
            device.submit(generation_request("s"))
            answer = await device.wait_for_end("s")
            assert answer[-1].ending == ("complete" if action == "local" else "failed")
            assert cloud.chip.num_failures > 9_900

    run(scenario)


def repeat(host: RunningHost, to: str) -> None:
    """Everything it says to `to` is said again at once, and a third time much later."""
    carry = host.driver._transmitters[to]
    past: list[tuple[str, str, Message]] = []

    def thrice(sender: str, to: str, message: Message) -> None:
        for said in ((sender, to, message), (sender, to, message), *past[-3:-2]):
            carry(*said)
        past.append((sender, to, message))

    host.driver.add_remote(to, thrice)
