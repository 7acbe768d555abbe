"""What goes wrong between hosts: nothing hangs, nothing is delivered twice, the others are served."""

import asyncio
from dataclasses import replace

import pytest

from serving.messages import Message
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.link_loss import LinkLoss
from tests.support.fake_pair import own_text
from tests.support.grpc_hosts import LIMITS, Party, call, delivered_once, origins, rig, run, until
from tests.support.policies import POLICIES

REMOTE = [name for name in POLICIES if name != "edge_centric"]


@pytest.mark.parametrize("name", REMOTE)
def test_hosts_serve_every_policy_together(name: str) -> None:
    async def play() -> None:
        async with rig(name) as made:
            cloud = await made.cloud()
            devices = [await made.device(i, cloud.address) for i in range(2)]
            for i, device in enumerate(devices):
                for j in range(3):
                    device.ask(call(f"s{i}.{j}"))
            for i, device in enumerate(devices):
                for j in range(3):
                    text = await device.text(f"s{i}.{j}")
                    if name != "synera":
                        assert text == own_text(call(f"s{i}.{j}").prompt, 24)
                    assert len(text) == 24

    run(play)


@pytest.mark.parametrize("action", ["wait", "local"])
def test_the_cloud_dies_during_a_verification_and_comes_back_empty(action: str) -> None:
    async def play() -> None:
        async with rig("sled", override={"link_loss": LinkLoss(action), "kv_cache": PrefixCaching()}) as made:
            cloud = await made.cloud()
            device = await made.device(0, cloud.address)
            cloud.chip.hold = True
            device.ask(call("s"))
            await asyncio.to_thread(cloud.chip.held.wait, 10)
            await cloud.end()
            if action == "local":
                assert len(await device.text("s")) == 24
                assert origins(device.delivered) == {"offline"}
            await made.cloud(cloud.address)
            await device.host.wait_until_reachable(["cloud-0"], 10)
            device.ask(call("t"))
            assert await device.text("t") == own_text(call("t").prompt, 24)
            if action == "wait":
                assert await device.text("s") == own_text(call("s").prompt, 24)
            assert delivered_once(device.delivered)

    run(play)


def test_the_cloud_frees_the_state_of_a_dead_device_and_serves_others() -> None:
    async def play() -> None:
        async with rig("cloud_centric", linger_s=0.05) as made:
            cloud = await made.cloud()
            doomed, other = [await made.device(i, cloud.address) for i in range(2)]
            doomed.ask(call("s", limit=4000))
            while not doomed.delivered:
                await asyncio.sleep(0.002)
            await doomed.end()
            other.ask(call("t"))
            assert await other.text("t") == own_text(call("t").prompt, 24)
            await until(lambda: not cloud.chip.caches and not cloud.node.kv_accounting.cached_lens)
            assert not cloud.node.queue
            assert not cloud.node.session_registry.owners

    run(play)


def test_a_restarted_device_may_use_the_same_session_names() -> None:
    async def play() -> None:
        async with rig("sled", timeout_s=float("inf"), override={"kv_cache": PrefixCaching()}) as made:
            cloud = await made.cloud()
            device = await made.device(0, cloud.address)
            device.ask(call("over"))
            await device.answer("over")
            device.ask(call("s", limit=4000))
            await until(lambda: len(device.delivered) > 20)
            await device.end()
            device = await made.device(0, cloud.address)
            for session in ("s", "over"):
                device.ask(call(session))
                assert await device.text(session) == own_text(call(session).prompt, 24)

    run(play)


def test_a_device_dies_while_the_cloud_computes_for_it() -> None:
    async def play() -> None:
        async with rig("sled", linger_s=0.05) as made:
            cloud = await made.cloud()
            doomed, other = [await made.device(i, cloud.address) for i in range(2)]
            cloud.chip.hold = True
            doomed.ask(call("s"))
            await asyncio.to_thread(cloud.chip.held.wait, 10)
            other.ask(call("t"))
            await doomed.end()
            await until(lambda: cloud.host.reachable == {"device-1"} and "s" not in cloud.node.session_registry.owners)
            cloud.chip.hold = False
            cloud.chip.go.set()
            assert await other.text("t") == own_text(call("t").prompt, 24)
            await until(
                lambda: not cloud.chip.caches and not cloud.node.session_registry.owners and not cloud.node.running
            )

    run(play)


@pytest.mark.parametrize("gone", ["the cloud starts again", "the lease of the device ends"])
def test_a_conversation_continues_after_its_cache_is_lost(gone: str) -> None:
    async def play() -> None:
        how = {"link_loss": LinkLoss("wait"), "kv_cache": PrefixCaching()}
        async with rig("sled", timeout_s=float("inf"), linger_s=0.02, override=how) as made:
            cloud = await made.cloud()
            way = await made.way(cloud.address)
            device = await made.device(0, way.address)
            device.ask(call("s", keep_cache=True))
            first = await device.text("s")
            prompt = (*call("s").prompt, *first, 5)
            if gone == "the cloud starts again":
                await cloud.end()
                cloud = await made.cloud(cloud.address)
            else:
                way.cut()
                await until(lambda: not cloud.chip.caches and not cloud.node.session_registry.owners)
                way.mend()
            device.delivered.clear()
            device.ask(replace(call("s", keep_cache=True), prompt=prompt))
            assert await device.text("s") == own_text(prompt, 24)

    run(play)


def test_a_session_released_to_make_room_continues() -> None:
    async def play() -> None:
        limits = replace(LIMITS, sessions_per_node=2)
        async with rig("sled", timeout_s=float("inf"), limits=limits, override={"kv_cache": PrefixCaching()}) as made:
            cloud = await made.cloud()
            device = await made.device(0, cloud.address)
            for session in ("a", "b", "c"):
                device.ask(call(session, keep_cache=True))
                await device.answer(session)
            assert "a" in cloud.node.session_registry.released
            device.delivered.clear()
            device.ask(call("a", keep_cache=True))
            assert await device.text("a") == own_text(call("a").prompt, 24)

    run(play)


def test_duplicate_and_late_messages_change_nothing() -> None:
    async def play() -> None:
        async with rig("sled") as made:
            cloud = await made.cloud()
            device = await made.device(0, cloud.address)
            repeat(device, "cloud-0")
            repeat(cloud, "device-0")
            for session in ("a", "b", "c"):
                device.ask(call(session))
            for session in ("a", "b", "c"):
                assert await device.text(session) == own_text(call(session).prompt, 24)
            assert delivered_once(device.delivered)

    run(play)


def test_a_failing_chip_costs_an_attempt_and_not_the_server() -> None:
    async def play() -> None:
        async with rig("sled") as made:
            cloud = await made.cloud()
            device = await made.device(0, cloud.address)
            cloud.chip.broken = 2
            device.ask(call("s"))
            assert await device.text("s") == own_text(call("s").prompt, 24)
            assert cloud.chip.broken == 0

    run(play)


@pytest.mark.parametrize("action", ["wait", "local", "fail"])
def test_a_cloud_that_always_fails_does_not_block_devices(action: str) -> None:
    async def play() -> None:
        async with rig("sled", override={"link_loss": LinkLoss(action)}) as made:
            cloud = await made.cloud()
            device = await made.device(0, cloud.address)
            cloud.chip.broken = 10_000
            device.ask(call("s"))
            answer = await device.answer("s")
            assert answer[-1].ending == ("complete" if action == "local" else "failed")
            assert cloud.chip.broken > 9_900

    run(play)


def repeat(party: Party, to: str) -> None:
    """Everything it says to `to` is said again at once, and a third time much later."""
    carry = party.live._transmitters[to]
    past: list[tuple[str, str, Message]] = []

    def thrice(sender: str, to: str, message: Message) -> None:
        for said in ((sender, to, message), (sender, to, message), *past[-3:-2]):
            carry(*said)
        past.append((sender, to, message))

    party.live.add_remote(to, thrice)
