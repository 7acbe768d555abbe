"""Two hosts over loopback: they exchange messages, disconnect, reconnect, and neither can overload the other."""

import asyncio
import socket
from dataclasses import replace
from typing import Any

import pytest

from serving.messages import INF, CacheMiss, LoadReport, Message, Release, Reply, Verdict
from serving.transport.client import ReconnectBackoff, TransportClient
from serving.transport.frame import Hello
from serving.transport.limits import ProtocolError
from serving.transport.server import TransportServer, _check_free
from tests.serving.transport.transport_peers import (
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

REPLY = Reply("s", 0, 2, Verdict(1, 5), ("cloud-0",), 0)


def test_a_host_that_is_not_known_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(RuntimeError, match="no-such-host:7070: Name or service not known"):
        _check_free("no-such-host:7070")


def test_a_taken_address_is_refused_without_a_line_of_grpcs_own(capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        async with listening(FakeSink(), "cloud-0") as (_, address):
            second = TransportServer(("cloud-1",), FakeSink(), address=address)
            with pytest.raises(RuntimeError, match=f"{address}: Address already in use"):
                await second.start()

    run_scenario(scenario)
    assert "Failed to add port" not in capfd.readouterr().err


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


@pytest.mark.parametrize("variable", ["grpc_proxy", "https_proxy", "http_proxy"])
def test_streams_pass_by_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:1")  # nothing listens there

    async def scenario() -> None:
        cloud = FakeSink()
        async with listening(cloud) as (_, address), dialling(FakeSink(), address) as client:
            assert client.last_error is None
            assert await cloud.news() == ("restored", ("device-0",))

    run_scenario(scenario)


def test_duplicates_are_delivered_and_messages_to_unknown_nodes_dropped() -> None:
    async def scenario() -> None:
        cloud, device = FakeSink(), FakeSink()
        async with listening(cloud) as (server, address), dialling(device, address) as client:
            client.send("device-0", "cloud-9", request())
            server.send("cloud-0", "device-9", REPLY)
            for _ in range(2):
                client.send("device-0", "cloud-0", request())
            assert [(await cloud.received())[2] for _ in range(2)] == [request()] * 2

    run_scenario(scenario)


def test_queued_messages_are_sent_before_a_host_stops() -> None:
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


def test_a_device_is_reachable_as_soon_as_its_cloud_is() -> None:
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


def test_a_device_that_connects_while_its_cloud_stops_is_lost_at_once() -> None:
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


def test_a_device_reconnects_to_a_restarted_cloud() -> None:
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


def test_a_host_with_another_configuration_is_refused_at_once() -> None:
    async def scenario() -> None:
        async with listening(FakeSink(), config_digest="aa") as (_, address):
            with pytest.raises(ProtocolError, match=r"configuration aa.*configuration bb.*same configuration"):
                async with dialling(FakeSink(), address, config_digest="bb"):
                    pass

    run_scenario(scenario)


def test_a_waiting_sink_stops_the_reading() -> None:
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


def test_the_stream_of_a_slow_reader_is_reset() -> None:
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
                assert (await device.received())[2] == big  # the device reads, so it sets the pace
            assert await cloud.news() == ("lost", ("slow-0",))
            assert cloud.quiet

    run_scenario(scenario)


def test_a_device_with_a_full_outbox_resets_its_stream() -> None:
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


def test_an_open_session_belongs_to_its_device_after_a_disconnect() -> None:
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


def test_both_sides_notice_a_silent_connection() -> None:
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


def test_a_busy_cloud_notices_a_dead_device() -> None:
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


def test_an_exception_in_a_sink_is_raised() -> None:
    class Broken(FakeSink):
        def peers_restored(self, nodes: tuple[str, ...]) -> None:
            raise RuntimeError("my own fault")

    async def scenario() -> None:
        async with listening(FakeSink()) as (_, address):
            with pytest.raises(RuntimeError, match="my own fault"):
                async with dialling(Broken(), address):
                    pass

    run_scenario(scenario)


def test_a_fault_that_ends_every_stream_is_said_once_and_waited_for_ever_longer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(FakeSink):
        def peers_restored(self, nodes: tuple[str, ...]) -> None:
            super().peers_restored(nodes)
            self.begun += 1
            if self.begun > 1:
                raise RuntimeError("my own fault")

    def recorded(backoff: ReconnectBackoff) -> float:
        delays_s.append(next_delay_s(backoff))
        return 0.0

    async def scenario() -> None:
        device = Broken()
        async with listening(FakeSink()) as (server, address), dialling(device, address):
            await server.stop(0.0)
            async with listening(FakeSink(), address=address):
                while device.begun < 6:
                    await device.news()

    delays_s: list[float] = []
    next_delay_s = ReconnectBackoff.next_delay_s
    monkeypatch.setattr(ReconnectBackoff, "next_delay_s", recorded)
    run_scenario(scenario)
    assert len([record for record in caplog.records if record.exc_info]) == 1
    assert delays_s[-1] > 2 * delays_s[0]


def test_two_hosts_of_one_name_say_it_once_each_and_wait_for_ever_longer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recorded(backoff: ReconnectBackoff) -> float:
        delays_s.append(next_delay_s(backoff))
        return 0.001

    async def scenario() -> None:
        async with (
            listening(FakeSink()) as (_, address),
            dialling(FakeSink(), address),
            dialling(FakeSink(), address),
        ):
            await until(lambda: len(delays_s) > 10)

    delays_s: list[float] = []
    next_delay_s = ReconnectBackoff.next_delay_s
    monkeypatch.setattr(ReconnectBackoff, "next_delay_s", recorded)
    run_scenario(scenario)
    said = [record.getMessage() for record in caplog.records if record.name.endswith("client")]
    assert 1 <= len(said) <= 2
    assert all("service.device=N" in text for text in said)
    assert max(delays_s) > 2 * delays_s[0]


def test_a_later_exception_in_a_sink_ends_its_stream_alone(caplog: pytest.LogCaptureFixture) -> None:
    class BrokenOnce(FakeSink):
        async def receive(self, sender: str, to: str, message: Message) -> None:
            if not self.begun:
                self.begun += 1
                raise RuntimeError("my own fault")
            await super().receive(sender, to, message)

    async def scenario() -> None:
        device = BrokenOnce()
        async with listening(FakeSink()) as (server, address), dialling(device, address):
            server.send("cloud-0", "device-0", REPLY)
            news = [(await device.news())[0] for _ in range(3)]
            assert news == ["restored", "lost", "restored"]
            server.send("cloud-0", "device-0", REPLY)
            assert (await device.received())[2] == REPLY

    run_scenario(scenario)
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["my own fault"]


def test_a_message_above_the_limit_raises_at_the_sender() -> None:
    async def scenario() -> None:
        cloud, device = FakeSink(), FakeSink()
        limits = replace(FAST, message_nbytes=1000)
        async with listening(cloud) as (_, address), dialling(device, address, limits=limits) as client:
            with pytest.raises(ValueError, match="message_nbytes=1000; raise it"):
                client.send("device-0", "cloud-0", request(n=2000))

    run_scenario(scenario)


def test_each_hello_has_its_own_boot_id_and_different_nodes() -> None:
    assert Hello(("a",)).boot_id != Hello(("a",)).boot_id
    with pytest.raises(ValueError, match="different names"):
        Hello(("a", "a"))


def test_a_cloud_that_never_answers_times_out() -> None:
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
