"""Two hosts over loopback: they talk, part, find each other again, and neither can drown the other."""

import asyncio
from dataclasses import replace

import pytest
from fake_hosts import (
    FAST,
    FakeSink,
    cable,
    dialling,
    ending,
    hello,
    listening,
    raw,
    request,
    run_scenario,
    soon,
    until,
)

from serving.messages import INF, CacheMiss, LoadReport, Message, Release, Reply, Verdict
from serving.transport.client import TransportClient
from serving.transport.errors import ProtocolError
from serving.transport.handshake import Hello
from serving.transport.server import TransportServer

REPLY = Reply("s", 0, 2, Verdict(1, 5), ("cloud-0",), 0)


def test_hosts_exchange_messages_both_ways() -> None:
    async def scenario() -> None:
        cloud, device = FakeSink(), FakeSink()
        async with listening(cloud, "cloud-0", "cloud-1") as (server, address):
            async with dialling(device, address, "device-0", "device-1") as client:
                assert await cloud.news() == ("restored", ("device-0", "device-1"))
                assert await device.news() == ("restored", ("cloud-0", "cloud-1"))
                asked = request(device="device-1", cloud="cloud-1")
                client.send("device-1", "cloud-1", asked)
                assert await cloud.received() == ("device-1", "cloud-1", asked)
                answers: list[Message] = [
                    REPLY,
                    CacheMiss("s", 1, "cloud-1"),
                    LoadReport("cloud-1", 0.5, 0.1, 0.2, INF),
                ]
                for answer in answers:
                    server.send("cloud-1", "device-1", answer)
                assert [(await device.received())[2] for _ in answers] == answers
                client.send("device-1", "cloud-1", Release("s"))
                assert await cloud.received() == ("device-1", "cloud-1", Release("s"))
            assert await cloud.news() == ("lost", ("device-0", "device-1"))
            assert await device.news() == ("lost", ("cloud-0", "cloud-1"))
            assert cloud.quiet
            assert device.quiet

    run_scenario(scenario)


def test_duplicates_pass_and_what_nobody_takes_is_dropped() -> None:
    async def scenario() -> None:
        cloud, device = FakeSink(), FakeSink()
        async with listening(cloud) as (server, address), dialling(device, address) as client:
            client.send("device-0", "cloud-9", request())
            server.send("cloud-0", "device-9", REPLY)
            for _ in range(2):
                client.send("device-0", "cloud-0", request())
            assert [(await cloud.received())[2] for _ in range(2)] == [request()] * 2

    run_scenario(scenario)


def test_what_waits_leaves_before_a_host_stops() -> None:
    async def scenario() -> None:
        cloud, device = FakeSink(), FakeSink()
        async with listening(cloud) as (server, address):
            async with dialling(device, address) as client:
                asks = [replace(request(), attempt=i) for i in range(200)]
                for ask in asks:
                    client.send("device-0", "cloud-0", ask)
                await client.stop(5)
            assert [(await cloud.received())[2] for _ in asks] == asks
            async with dialling(device, address):
                for i in range(200):
                    server.send("cloud-0", "device-0", replace(REPLY, attempt=i))
                await server.stop(5)
                assert [(await device.received())[2] for i in range(200)][-1] == replace(REPLY, attempt=199)

    run_scenario(scenario)


def test_a_device_that_knows_its_cloud_is_known_to_it() -> None:
    class Eager(FakeSink):
        def peers_restored(self, nodes: tuple[str, ...]) -> None:
            super().peers_restored(nodes)
            server.send("cloud-0", "device-0", REPLY)

    async def scenario() -> None:
        nonlocal server
        for _ in range(20):
            device = Eager()
            async with listening(FakeSink()) as (server, address), dialling(device, address):
                assert (await device.received())[2] == REPLY

    server: TransportServer
    run_scenario(scenario)


def test_a_device_that_comes_while_its_cloud_stops_hears_goodbye() -> None:
    async def scenario() -> None:
        cloud = FakeSink()
        async with listening(cloud) as (server, address), raw(address) as call:
            await call.initial_metadata()
            stop = asyncio.ensure_future(server.stop(30))
            await asyncio.sleep(0)
            await call.write(hello("device-0"))
            await soon(asyncio.shield(stop))
            assert [await cloud.news() for _ in range(2)] == [("restored", ("device-0",)), ("lost", ("device-0",))]

    run_scenario(scenario)


def test_a_device_finds_a_cloud_that_restarts() -> None:
    async def scenario() -> None:
        cloud, device = FakeSink(), FakeSink()
        async with listening(cloud) as (_, address):
            client = TransportClient(("device-0",), device, None, address, limits=FAST)
            await client.start()
        assert [await device.news() for _ in range(2)] == [("restored", ("cloud-0",)), ("lost", ("cloud-0",))]
        client.send("device-0", "cloud-0", request())  # into the void
        await until(lambda: client.last_error is not None)
        async with listening(cloud, address=address):
            assert await device.news() == ("restored", ("cloud-0",))
            assert client.last_error is None
            client.send("device-0", "cloud-0", request("again"))
            assert (await cloud.received())[2] == request("again")
            await client.stop()

    run_scenario(scenario)


def test_a_device_may_start_before_its_cloud() -> None:
    async def scenario() -> None:
        cloud, device = FakeSink(), FakeSink()
        async with listening(cloud) as (_, address):
            pass
        async with dialling(device, address) as client:
            assert client.last_error
            assert client.last_error.code == "UNAVAILABLE"
            assert device.quiet
            async with listening(cloud, address=address):
                assert await device.news() == ("restored", ("cloud-0",))

    run_scenario(scenario)


def test_a_host_of_another_run_is_refused_at_once() -> None:
    async def scenario() -> None:
        async with listening(FakeSink(), config_digest="aa") as (_, address):
            with pytest.raises(ProtocolError, match=r"configuration aa.*configuration bb.*same configuration"):
                async with dialling(FakeSink(), address, config_digest="bb"):
                    pass

    run_scenario(scenario)


def test_ears_that_wait_stop_the_reading() -> None:
    async def scenario() -> None:
        cloud, device = FakeSink(), FakeSink()
        async with listening(cloud) as (_, address), dialling(device, address) as client:
            cloud.open.clear()
            for i in range(20):
                client.send("device-0", "cloud-0", request(f"s{i}"))
            await until(lambda: cloud.begun == 1)
            async with dialling(FakeSink(), address, "device-1"):  # turns the loop, and is served
                assert cloud.begun == 1
            cloud.open.set()
            heard = [(await cloud.received())[2] for _ in range(20)]
            assert heard == [request(f"s{i}") for i in range(20)]

    run_scenario(scenario)


def test_a_slow_reader_is_cut_off() -> None:
    async def scenario() -> None:
        cloud, device = FakeSink(), FakeSink()
        big = replace(REPLY, verdict=Verdict(0, 1, tuple(range(100_000))))
        async with (
            listening(cloud, limits=replace(FAST, outbox_messages=8)) as (server, address),
            dialling(device, address),
            raw(address, hello("slow-0")),
        ):
            assert await cloud.news() == ("restored", ("device-0",))
            assert await cloud.news() == ("restored", ("slow-0",))
            while cloud.quiet:  # the windows of HTTP/2 fill, then the outbox
                for node in ("slow-0", "device-0"):
                    server.send("cloud-0", node, big)
                assert (await device.received())[2] == big  # the pace is that of one who reads
            assert await cloud.news() == ("lost", ("slow-0",))
            assert cloud.quiet

    run_scenario(scenario)


def test_a_device_that_is_told_too_little_is_reset_by_its_own_side() -> None:
    async def scenario() -> None:
        cloud, device = FakeSink(), FakeSink()
        async with listening(cloud) as (_, address):
            limits = replace(FAST, outbox_messages=8)
            async with dialling(device, address, limits=limits) as client:
                assert await device.news() == ("restored", ("cloud-0",))
                for _ in range(9):
                    client.send("device-0", "cloud-0", request())
                assert await device.news() == ("lost", ("cloud-0",))
                assert await device.news() == ("restored", ("cloud-0",))

    run_scenario(scenario)


def test_a_newer_stream_of_a_device_replaces_the_older() -> None:
    async def scenario() -> None:
        cloud, device = FakeSink(), FakeSink()
        async with listening(cloud) as (_, address), raw(address, hello("device-0", "device-7")) as old:
            assert await cloud.news() == ("restored", ("device-0", "device-7"))
            async with dialling(device, address) as client:
                assert await cloud.news() == ("lost", ("device-0", "device-7"))
                assert await cloud.news() == ("restored", ("device-0",))
                code, text = await ending(old)
                assert code == "ABORTED"
                assert "replaces" in text
                client.send("device-0", "cloud-0", request())
                await cloud.received()
            assert await cloud.news() == ("lost", ("device-0",))
            assert cloud.quiet

    run_scenario(scenario)


def test_a_session_that_is_still_open_belongs_to_its_device_after_a_break() -> None:
    async def scenario() -> None:
        cloud = FakeSink()
        async with listening(cloud) as (_, address):
            async with dialling(FakeSink(), address) as client:
                client.send("device-0", "cloud-0", request("mine"))
                await cloud.received()
            async with dialling(FakeSink(), address, "thief") as thief:
                thief.send("thief", "cloud-0", request("mine", "thief"))
                await until(lambda: thief.last_error is not None)
                assert thief.last_error
                assert "opened by another host" in thief.last_error.text
            async with dialling(FakeSink(), address) as client:
                client.send("device-0", "cloud-0", request("mine"))
                await cloud.received()
                assert cloud._received.empty()

    run_scenario(scenario)


def test_a_peer_that_falls_silent_is_noticed_by_both() -> None:
    async def scenario() -> None:
        cloud, device = FakeSink(), FakeSink()
        limits = replace(FAST, keepalive_s=0.1, keepalive_timeout_s=0.1)
        async with (
            listening(cloud, limits=limits) as (_, address),
            cable(address) as (way, cut),
            dialling(device, way, limits=replace(limits, connect_timeout_s=0.1)),
        ):
            assert await cloud.news() == ("restored", ("device-0",))
            assert await device.news() == ("restored", ("cloud-0",))
            cut.set()
            assert await cloud.news() == ("lost", ("device-0",))
            assert await device.news() == ("lost", ("cloud-0",))

    run_scenario(scenario)


def test_a_device_that_dies_while_the_cloud_is_busy_is_noticed() -> None:
    async def scenario() -> None:
        cloud = FakeSink()
        cloud.open.clear()
        async with listening(cloud) as (_, address):
            async with dialling(FakeSink(), address) as client:
                client.send("device-0", "cloud-0", request())
                await until(lambda: cloud.begun == 1)
                await client.stop(0)
            assert [await cloud.news() for _ in range(2)] == [("restored", ("device-0",)), ("lost", ("device-0",))]

    run_scenario(scenario)


def test_ears_that_raise_end_their_host_aloud() -> None:
    class Broken(FakeSink):
        def peers_restored(self, nodes: tuple[str, ...]) -> None:
            raise RuntimeError("my own fault")

    async def scenario() -> None:
        async with listening(FakeSink()) as (_, address):
            with pytest.raises(RuntimeError, match="my own fault"):
                async with dialling(Broken(), address):
                    pass

    run_scenario(scenario)


def test_a_message_above_the_limit_is_an_error_at_home() -> None:
    async def scenario() -> None:
        cloud, device = FakeSink(), FakeSink()
        limits = replace(FAST, message_nbytes=1000)
        async with listening(cloud) as (_, address), dialling(device, address, limits=limits) as client:
            with pytest.raises(ValueError, match="message_nbytes=1000; raise it"):
                client.send("device-0", "cloud-0", request(n=2000))

    run_scenario(scenario)


def test_an_address_that_is_taken_is_an_error() -> None:
    async def scenario() -> None:
        async with listening(FakeSink()) as (_, address):
            with pytest.raises(RuntimeError, match="Failed to bind"):
                await TransportServer(("b",), FakeSink(), address=address).start()

    run_scenario(scenario)


def test_a_host_is_one_thing_until_it_restarts() -> None:
    assert Hello(("a",)).boot_id != Hello(("a",)).boot_id
    with pytest.raises(ValueError, match="different names"):
        Hello(("a", "a"))


def test_a_cloud_that_never_answers_is_no_reason_to_hang() -> None:
    async def scenario() -> None:
        writers = []

        async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            await reader.read()

        silent = await asyncio.start_server(swallow, "127.0.0.1", 0)
        address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        async with dialling(FakeSink(), address, limits=replace(FAST, connect_timeout_s=0.2)) as client:
            assert client.last_error
            assert client.last_error.code == "DEADLINE_EXCEEDED"
        assert writers
        for writer in writers:
            writer.close()
            await soon(writer.wait_closed())
        silent.close()
        await soon(silent.wait_closed())

    run_scenario(scenario)
