"""Links between working hosts that are cut, stalled, delayed or truncated; and hostile clients."""

import asyncio
import random
from contextlib import suppress
from dataclasses import replace

import grpc.aio
import pytest

from serving.messages import EmitTokens
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.prefill import WholePrefill
from tests.support.fake_pair import own_text
from tests.support.grpc_hosts import LIMITS, Party, Rig, call, delivered_once, origins, rig, run, until
from tests.support.policies import POLICIES
from tests.support.tcp_proxy import Proxy

QUICK = replace(LIMITS, keepalive_s=0.1, keepalive_timeout_s=0.1, connect_timeout_s=0.3)


def own(session: str, limit: int = 24) -> tuple[int, ...]:
    return own_text(call(session).prompt, limit)


async def in_the_middle(made: Rig, cut: str = "cut") -> tuple[Party, Party, Proxy]:
    """A cloud that is verifying for a device when the link between them breaks."""
    cloud = await made.cloud()
    way = await made.way(cloud.address)
    device = await made.device(0, way.address)
    cloud.chip.hold = True
    device.ask(call("s"))
    await asyncio.to_thread(cloud.chip.held.wait, 10)
    getattr(way, cut)()
    await until(lambda: not device.host.reachable)
    cloud.chip.hold = False
    cloud.chip.go.set()
    return cloud, device, way


@pytest.mark.parametrize("cut", ["cut", "stall"])
@pytest.mark.parametrize("action", ["wait", "local", "fail"])
def test_the_link_breaks_in_the_middle_of_a_verification(action: str, cut: str) -> None:
    async def play() -> None:
        async with rig("sled", limits=QUICK, override={"link_loss": LinkLoss(action)}) as made:  # type: ignore[arg-type]
            _, device, way = await in_the_middle(made, cut)
            if action == "local":
                assert len(await device.text("s")) == 24
                assert origins(device.delivered) == {"offline"}
            if action == "fail":
                assert [d.ending for d in await device.answer("s")] == ["failed"]
            way.mend()
            if action == "wait":
                assert await device.text("s") == own("s")
                assert "offline" not in origins(device.delivered)
            await device.host.wait_until_reachable(["cloud-0"], 10)
            device.ask(call("t"))
            assert await device.text("t") == own("t")
            assert delivered_once(device.delivered)

    run(play)


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "edge_centric"])
def test_streams_break_inside_frames_repeatedly(name: str) -> None:
    async def play() -> None:
        async with rig(name, limits=QUICK, override={"link_loss": LinkLoss("wait")}) as made:
            cloud = await made.cloud()
            way = await made.way(cloud.address)
            device = await made.device(0, way.address)
            r = random.Random(name)
            for i in range(6):
                way.truncate(r.randrange(1, 400))
                broken = way.connections
                device.ask(call(f"s{i}"))
                text = await device.text(f"s{i}")
                assert text == own(f"s{i}") or name == "synera"
                await device.host.wait_until_reachable(["cloud-0"], 10)
                assert way.connections >= broken
            assert way.connections > 1
            assert delivered_once(device.delivered)

    run(play)


def test_a_stalled_link_does_not_affect_other_devices() -> None:
    async def play() -> None:
        async with rig("cloud_centric", limits=QUICK) as made:
            cloud = await made.cloud()
            way = await made.way(cloud.address)
            slow, other = await made.device(0, way.address), await made.device(1, cloud.address)
            slow.ask(call("s", limit=400))
            await until(lambda: bool(slow.delivered))
            way.stall()
            for i in range(5):
                other.ask(call(f"t{i}"))
                assert await other.text(f"t{i}") == own(f"t{i}")
            way.mend()
            assert await slow.text("s") == own("s", 400)

    run(play)


def test_a_slow_link_with_repeated_requests_changes_no_text() -> None:
    async def play() -> None:
        async with rig(
            "sled", timeout_s=0.015
        ) as made:  # less than a way there and back: every question is asked twice
            cloud = await made.cloud()
            way = await made.way(cloud.address)
            way.delay_s = 0.01
            device = await made.device(0, way.address)
            device.ask(call("s"))
            assert await device.text("s") == own("s")
            assert delivered_once(device.delivered)

    run(play)


def test_a_device_joins_while_another_is_served() -> None:
    async def play() -> None:
        async with rig("cloud_centric", devices=3) as made:
            cloud = await made.cloud()
            first = await made.device(0, cloud.address)
            first.ask(call("a", limit=300))
            await until(lambda: bool(first.delivered))
            second = await made.device(1, cloud.address)
            second.ask(call("b"))
            assert await second.text("b") == own("b")
            assert await first.text("a") == own("a", 300)

    run(play)


def test_a_request_that_waits_for_the_cloud_can_be_cancelled() -> None:
    async def play() -> None:
        async with rig("sled", override={"link_loss": LinkLoss("wait")}) as made:
            _, device, way = await in_the_middle(made)
            device.ask(call("t"))
            device.leave("t")
            assert [d.ending for d in await device.answer("t")] == ["cancelled"]
            device.leave("s")
            assert (await device.answer("s"))[-1].ending == "cancelled"
            device.ask(call("u"))
            await until(lambda: "u" in device.node.active)
            device.leave("u")
            assert (await device.answer("u"))[-1].ending == "cancelled"
            way.mend()
            device.ask(call("v"))
            assert await device.text("v") == own("v")

    run(play)


@pytest.mark.parametrize("action", ["wait", "local", "fail"])
def test_the_link_breaks_during_the_prefill(action: str) -> None:
    async def play() -> None:
        how = {"link_loss": LinkLoss(action), "prefill": WholePrefill("first"), "kv_cache": PrefixCaching()}  # type: ignore[arg-type]
        async with rig("synera", override=how) as made:
            _, device, way = await in_the_middle(made)
            if action == "wait":
                way.mend()
            ending = (await device.answer("s"))[-1].ending
            assert ending == ("failed" if action == "fail" else "complete")
            assert action == "fail" or len(await device.text("s")) == 24

    run(play)


def test_the_devices_own_chip_fails() -> None:
    async def play() -> None:
        async with rig("sled") as made:
            cloud = await made.cloud()
            device = await made.device(0, cloud.address)
            device.chip.broken = 1
            device.ask(call("s"))
            device.ask(call("t"))
            assert [d.ending for d in await device.answer("s")] == ["failed"]
            assert await device.text("t") == own("t")

    run(play)


def test_a_failing_session_does_not_affect_others() -> None:
    async def play() -> None:
        async with rig("sled", devices=3, override={"link_loss": LinkLoss("wait")}) as made:
            cloud = await made.cloud()
            devices = [await made.device(i, cloud.address) for i in range(3)]
            cloud.chip.ill.add("s0")
            for i, device in enumerate(devices):
                device.ask(call(f"s{i}"))
            assert await devices[1].text("s1") == own("s1")
            assert await devices[2].text("s2") == own("s2")
            assert (await devices[0].answer("s0"))[-1].ending == "failed"

    run(play)


@pytest.mark.parametrize("action", ["wait", "local"])
def test_a_request_too_large_to_send_does_not_stop_the_device(action: str) -> None:
    async def play() -> None:
        limits, how = replace(LIMITS, message_nbytes=1024), {"link_loss": LinkLoss(action)}  # type: ignore[arg-type]
        async with rig("sled", limits=limits, override=how) as made:
            cloud = await made.cloud()
            device = await made.device(0, cloud.address)
            device.ask(replace(call("s"), prompt=tuple(range(900))))
            assert (await device.answer("s"))[-1].ending == ("failed" if action == "wait" else "complete")
            device.ask(call("t"))
            assert await device.text("t") == own("t")

    run(play)


def test_requests_wait_for_a_cloud_whose_driver_has_not_started() -> None:
    async def play() -> None:
        async with rig("sled", timeout_s=float("inf")) as made:
            cloud = made._party("cloud-0")
            device = await made.device(0, await cloud.host.listen("127.0.0.1:0"))
            device.ask(call("s"))
            await until(
                lambda: (
                    device.node.active_requester is not None
                    and device.node.active_requester.session.in_flight_drafts is not None
                )
            )
            await until(lambda: bool(cloud.host._transports[0]._connections.owners.num_sessions))  # type: ignore[attr-defined]
            made._run(cloud)
            assert await device.text("s") == own("s")

    run(play)


def test_hostile_clients_do_not_affect_other_devices() -> None:
    from serving.transport.frame import Hello
    from tests.serving.transport.test_hostile_bytes import _attack, told
    from tests.serving.transport.transport_peers import hello, raw, request

    def greeted(name: str, frames: list[bytes]) -> list[bytes]:
        """The frames with a handshake that the cloud accepts."""
        known = Hello((name,), "digest", boot_id="b").encoded
        return [known if frame == hello(name) else frame for frame in frames]

    async def attack(address: str, frames: list[bytes]) -> None:
        async with raw(address) as stream:
            with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                for frame in frames:
                    await stream.write(frame)
                await stream.done_writing()
                while await stream.read() is not grpc.aio.EOF:
                    pass

    async def play() -> None:
        async with rig("cloud_centric", devices=2) as made:
            cloud = await made.cloud()
            device = await made.device(0, cloud.address)
            r = random.Random(5)
            device.ask(call("s", limit=150))
            for i in range(40):
                await attack(cloud.address, greeted(f"evil-{i}", _attack(r, i)))
            for name in ("evil-0", "evil-1"):
                theirs = told(request("theirs", name), name)
                await attack(cloud.address, greeted(name, [hello(name), theirs]))
            assert await device.text("s") == own("s", 150)
            await until(lambda: cloud.host.reachable == {"device-0"})
            assert not cloud.node.node_selector.lost_nodes - {"device-1"}
            assert set(cloud.node.session_registry.owners) <= {"s"}
            assert all(isinstance(each, EmitTokens) for each in device.delivered)

    run(play)


def test_an_invalid_token_id_breaks_its_own_stream_only() -> None:
    async def play() -> None:
        async with rig("sled", override={"link_loss": LinkLoss("wait")}) as made:
            cloud = await made.cloud()
            wrong, other = [await made.device(i, cloud.address) for i in range(2)]
            wrong.ask(replace(call("s"), prompt=(1, 997)))
            other.ask(call("t"))
            assert await other.text("t") == own("t")
            assert (await wrong.answer("s"))[-1].ending == "failed"
            assert not cloud.node.session_registry.owners.keys() - {"t"}

    run(play)
