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
from tests.support.grpc_hosts import (
    LIMITS,
    HostGroup,
    RunningHost,
    delivered_once,
    generation_request,
    host_group,
    origins,
    run,
    until,
)
from tests.support.policies import POLICIES
from tests.support.tcp_proxy import Proxy

QUICK = replace(LIMITS, keepalive_s=0.1, keepalive_timeout_s=0.1, connect_timeout_s=0.3)


def expected_text(session: str, limit: int = 24) -> tuple[int, ...]:
    return own_text(generation_request(session).prompt, limit)


async def cut_during_verification(hosts: HostGroup, cut: str = "cut") -> tuple[RunningHost, RunningHost, Proxy]:
    """A cloud that is verifying for a device when the link between them breaks."""
    cloud = await hosts.cloud()
    way = await hosts.proxy_to(cloud.address)
    device = await hosts.device(0, way.address)
    cloud.chip.hold = True
    device.submit(generation_request("s"))
    await asyncio.to_thread(cloud.chip.held.wait, 10)
    getattr(way, cut)()
    await until(lambda: not device.host.reachable)
    cloud.chip.hold = False
    cloud.chip.resume.set()
    return cloud, device, way


@pytest.mark.parametrize("cut", ["cut", "stall"])
@pytest.mark.parametrize("action", ["wait", "local", "fail"])
def test_the_link_breaks_in_the_middle_of_a_verification(action: str, cut: str) -> None:
    async def scenario() -> None:
        async with host_group("sled", limits=QUICK, override={"link_loss": LinkLoss(action)}) as hosts:  # type: ignore[arg-type]
            _, device, way = await cut_during_verification(hosts, cut)
            if action == "local":
                assert len(await device.text("s")) == 24
                assert origins(device.delivered) == {"offline"}
            if action == "fail":
                assert [d.ending for d in await device.wait_for_end("s")] == ["failed"]
            way.mend()
            if action == "wait":
                assert await device.text("s") == expected_text("s")
                assert "offline" not in origins(device.delivered)
            await device.host.wait_until_reachable(["cloud-0"], 10)
            device.submit(generation_request("t"))
            assert await device.text("t") == expected_text("t")
            assert delivered_once(device.delivered)

    run(scenario)


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "edge_centric"])
def test_streams_break_inside_frames_repeatedly(name: str) -> None:
    async def scenario() -> None:
        async with host_group(name, limits=QUICK, override={"link_loss": LinkLoss("wait")}) as hosts:
            cloud = await hosts.cloud()
            way = await hosts.proxy_to(cloud.address)
            device = await hosts.device(0, way.address)
            r = random.Random(name)
            for i in range(6):
                way.truncate(r.randrange(1, 400))
                broken = way.connections
                device.submit(generation_request(f"s{i}"))
                text = await device.text(f"s{i}")
                assert text == expected_text(f"s{i}") or name == "synera"
                await device.host.wait_until_reachable(["cloud-0"], 10)
                assert way.connections >= broken
            assert way.connections > 1
            assert delivered_once(device.delivered)

    run(scenario)


def test_a_stalled_link_does_not_affect_other_devices() -> None:
    async def scenario() -> None:
        async with host_group("cloud_centric", limits=QUICK) as hosts:
            cloud = await hosts.cloud()
            way = await hosts.proxy_to(cloud.address)
            slow, other = await hosts.device(0, way.address), await hosts.device(1, cloud.address)
            slow.submit(generation_request("s", limit=400))
            await until(lambda: bool(slow.delivered))
            way.stall()
            for i in range(5):
                other.submit(generation_request(f"t{i}"))
                assert await other.text(f"t{i}") == expected_text(f"t{i}")
            way.mend()
            assert await slow.text("s") == expected_text("s", 400)

    run(scenario)


def test_a_slow_link_with_repeated_requests_changes_no_text() -> None:
    async def scenario() -> None:
        async with host_group(
            "sled", timeout_s=0.015
        ) as hosts:  # less than a way there and back: every question is asked twice
            cloud = await hosts.cloud()
            way = await hosts.proxy_to(cloud.address)
            way.delay_s = 0.01
            device = await hosts.device(0, way.address)
            device.submit(generation_request("s"))
            assert await device.text("s") == expected_text("s")
            assert delivered_once(device.delivered)

    run(scenario)


def test_a_device_joins_while_another_is_served() -> None:
    async def scenario() -> None:
        async with host_group("cloud_centric", devices=3) as hosts:
            cloud = await hosts.cloud()
            first = await hosts.device(0, cloud.address)
            first.submit(generation_request("a", limit=300))
            await until(lambda: bool(first.delivered))
            second = await hosts.device(1, cloud.address)
            second.submit(generation_request("b"))
            assert await second.text("b") == expected_text("b")
            assert await first.text("a") == expected_text("a", 300)

    run(scenario)


def test_a_request_that_waits_for_the_cloud_can_be_cancelled() -> None:
    async def scenario() -> None:
        async with host_group("sled", override={"link_loss": LinkLoss("wait")}) as hosts:
            _, device, way = await cut_during_verification(hosts)
            device.submit(generation_request("t"))
            device.cancel("t")
            assert [d.ending for d in await device.wait_for_end("t")] == ["cancelled"]
            device.cancel("s")
            assert (await device.wait_for_end("s"))[-1].ending == "cancelled"
            device.submit(generation_request("u"))
            await until(lambda: "u" in device.node.active)
            device.cancel("u")
            assert (await device.wait_for_end("u"))[-1].ending == "cancelled"
            way.mend()
            device.submit(generation_request("v"))
            assert await device.text("v") == expected_text("v")

    run(scenario)


@pytest.mark.parametrize("action", ["wait", "local", "fail"])
def test_the_link_breaks_during_the_prefill(action: str) -> None:
    async def scenario() -> None:
        how = {"link_loss": LinkLoss(action), "prefill": WholePrefill("first"), "kv_cache": PrefixCaching()}  # type: ignore[arg-type]
        async with host_group("synera", override=how) as hosts:
            _, device, way = await cut_during_verification(hosts)
            if action == "wait":
                way.mend()
            ending = (await device.wait_for_end("s"))[-1].ending
            assert ending == ("failed" if action == "fail" else "complete")
            assert action == "fail" or len(await device.text("s")) == 24

    run(scenario)


def test_the_devices_own_chip_fails() -> None:
    async def scenario() -> None:
        async with host_group("sled") as hosts:
            cloud = await hosts.cloud()
            device = await hosts.device(0, cloud.address)
            device.chip.num_failures = 1
            device.submit(generation_request("s"))
            device.submit(generation_request("t"))
            assert [d.ending for d in await device.wait_for_end("s")] == ["failed"]
            assert await device.text("t") == expected_text("t")

    run(scenario)


def test_a_failing_session_does_not_affect_others() -> None:
    async def scenario() -> None:
        async with host_group("sled", devices=3, override={"link_loss": LinkLoss("wait")}) as hosts:
            cloud = await hosts.cloud()
            devices = [await hosts.device(i, cloud.address) for i in range(3)]
            cloud.chip.failing_sessions.add("s0")
            for i, device in enumerate(devices):
                device.submit(generation_request(f"s{i}"))
            assert await devices[1].text("s1") == expected_text("s1")
            assert await devices[2].text("s2") == expected_text("s2")
            assert (await devices[0].wait_for_end("s0"))[-1].ending == "failed"

    run(scenario)


@pytest.mark.parametrize("action", ["wait", "local"])
def test_a_request_too_large_to_send_does_not_stop_the_device(action: str) -> None:
    async def scenario() -> None:
        limits, how = replace(LIMITS, message_nbytes=1024), {"link_loss": LinkLoss(action)}  # type: ignore[arg-type]
        async with host_group("sled", limits=limits, override=how) as hosts:
            cloud = await hosts.cloud()
            device = await hosts.device(0, cloud.address)
            device.submit(replace(generation_request("s"), prompt=tuple(range(900))))
            assert (await device.wait_for_end("s"))[-1].ending == ("failed" if action == "wait" else "complete")
            device.submit(generation_request("t"))
            assert await device.text("t") == expected_text("t")

    run(scenario)


def test_requests_wait_for_a_cloud_whose_driver_has_not_started() -> None:
    async def scenario() -> None:
        async with host_group("sled", timeout_s=float("inf")) as hosts:
            cloud = hosts.create("cloud-0")
            device = await hosts.device(0, await cloud.host.listen("127.0.0.1:0"))
            device.submit(generation_request("s"))
            await until(
                lambda: (
                    device.node.active_requester is not None
                    and device.node.active_requester.session.in_flight_drafts is not None
                )
            )
            await until(lambda: bool(cloud.host._transports[0]._connections.owners.num_sessions))  # type: ignore[attr-defined]
            hosts.run(cloud)
            assert await device.text("s") == expected_text("s")

    run(scenario)


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

    async def scenario() -> None:
        async with host_group("cloud_centric", devices=2) as hosts:
            cloud = await hosts.cloud()
            device = await hosts.device(0, cloud.address)
            r = random.Random(5)
            device.submit(generation_request("s", limit=150))
            for i in range(40):
                await attack(cloud.address, greeted(f"evil-{i}", _attack(r, i)))
            for name in ("evil-0", "evil-1"):
                theirs = told(request("theirs", name), name)
                await attack(cloud.address, greeted(name, [hello(name), theirs]))
            assert await device.text("s") == expected_text("s", 150)
            await until(lambda: cloud.host.reachable == {"device-0"})
            assert not cloud.node.node_selector.lost_nodes.keys() - {"device-1"}
            assert set(cloud.node.session_registry.owners) <= {"s"}
            assert all(isinstance(each, EmitTokens) for each in device.delivered)

    run(scenario)


def test_an_invalid_token_id_breaks_its_own_stream_only() -> None:
    async def scenario() -> None:
        async with host_group("sled", override={"link_loss": LinkLoss("wait")}) as hosts:
            cloud = await hosts.cloud()
            wrong, other = [await hosts.device(i, cloud.address) for i in range(2)]
            wrong.submit(replace(generation_request("s"), prompt=(1, 997)))
            other.submit(generation_request("t"))
            assert await other.text("t") == expected_text("t")
            assert (await wrong.wait_for_end("s"))[-1].ending == "failed"
            assert not cloud.node.session_registry.owners.keys() - {"t"}

    run(scenario)
