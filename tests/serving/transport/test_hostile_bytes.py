"""Hostile bytes end at most their own stream; the server goes on serving."""

import asyncio
import random
from contextlib import suppress
from dataclasses import replace

import grpc.aio
import pytest

from serving.messages import LoadReport, Message, Release, Reply, Verdict
from serving.transport.frame import Envelope, encode_message
from serving.transport.limits import Limits
from tests.serving.transport.transport_peers import (
    FAST,
    FakeSink,
    ending,
    hello,
    listening,
    raw,
    request,
    run_scenario,
    serves,
    soon,
)
from tests.serving.transport.wire_rows import frame_of, row


def told(message: Message, sender: str = "evil-0", to: str = "cloud-0") -> bytes:
    return encode_message(sender, to, message)


def asked(session: str = "s", device: str = "evil-0") -> bytes:
    return told(request(session, device), device)


@pytest.mark.parametrize(
    ("frames", "code", "text"),
    [
        ([b""], "INVALID_ARGUMENT", "must be a Hello"),
        ([b"\xff\xff"], "INVALID_ARGUMENT", "no Frame"),
        ([asked()], "INVALID_ARGUMENT", "must be a Hello"),
        ([hello("a b")], "INVALID_ARGUMENT", "Hello.nodes"),
        ([hello("x" * 65)], "INVALID_ARGUMENT", "Hello.nodes"),
        ([hello("cloud-0")], "INVALID_ARGUMENT", "both sides"),
        ([hello(), hello()], "INVALID_ARGUMENT", "after the Hello"),
        ([hello(), b"\x12"], "INVALID_ARGUMENT", "no Frame"),
        ([hello(), asked(device="device-0")], "INVALID_ARGUMENT", "Envelope.sender"),
        ([hello(), told(request("s", "other-0"))], "INVALID_ARGUMENT", "reply_to"),
        ([hello(), told(Release("s"), to="cloud-1")], "INVALID_ARGUMENT", "Envelope.to"),
        ([hello(), told(LoadReport("cloud-0", 0, 0, 0, 0))], "INVALID_ARGUMENT", "LoadReport.node"),
        ([hello(), told(request("s", "evil-0", n=4000))], "RESOURCE_EXHAUSTED", "larger than max"),
    ],
)
def test_an_invalid_frame_closes_only_its_stream(frames: list[bytes], code: str, text: str) -> None:
    async def scenario() -> None:
        cloud = FakeSink()
        limits = replace(FAST, message_nbytes=2048)
        async with listening(cloud, limits=limits) as (_, address):
            async with raw(address, *frames) as call:
                found, details = await ending(call)
                assert found == code
                assert text in details
            await serves(cloud, address)

    run_scenario(scenario)


def test_a_stream_without_a_hello_is_closed() -> None:
    async def scenario() -> None:
        cloud = FakeSink()
        async with (
            listening(cloud, limits=replace(FAST, handshake_timeout_s=0.1)) as (_, address),
            raw(address) as call,
        ):
            code, text = await ending(call)
            assert code == "DEADLINE_EXCEEDED"
            assert "handshake_timeout_s=0.1" in text

    run_scenario(scenario)


def test_messages_about_another_hosts_session_are_refused() -> None:
    async def scenario() -> None:
        cloud = FakeSink()
        async with listening(cloud) as (_, address), raw(address, hello("good-0"), asked("mine", "good-0")):
            await cloud.received()
            for message in (request("mine", "evil-0"), Release("mine"), Reply("mine", 0, 0, Verdict(0, 1), (), 0)):
                async with raw(address, hello(), told(message)) as call:
                    assert "opened by another host" in (await ending(call))[1]
            assert cloud._received.empty()

    run_scenario(scenario)


def test_a_release_of_an_unknown_session_is_not_delivered() -> None:
    async def scenario() -> None:
        cloud = FakeSink()
        frames = hello(), told(Release("later")), asked("own"), told(Release("own"))
        async with listening(cloud) as (_, address), raw(address, *frames):
            assert (await cloud.received())[2] == request("own", "evil-0")
            assert (await cloud.received())[2] == Release("own")

    run_scenario(scenario)


def test_open_sessions_of_one_host_are_bounded() -> None:
    async def scenario() -> None:
        cloud = FakeSink()
        frames = hello(), *(asked(f"s{i}") for i in range(4))
        async with listening(cloud, limits=replace(FAST, sessions_per_node=2)) as (_, address), raw(address, *frames):
            heard = [(await cloud.received())[2] for _ in range(6)]
        asks = [request(f"s{i}", "evil-0") for i in range(4)]
        assert heard == [asks[0], asks[1], Release("s0"), asks[2], Release("s1"), asks[3]]

    run_scenario(scenario)


def _mutated(r: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(r.randint(1, 4)):
        at = r.randrange(len(out))
        match r.randrange(3):
            case 0:
                out[at] = r.randrange(256)
            case 1:
                del out[at : at + r.randint(1, 4)]
            case _:
                out[at:at] = r.randbytes(r.randint(1, 4))
        if not out:
            return b"\x00"
    return bytes(out)


def _with_another_value(r: random.Random, envelope: Envelope) -> bytes:
    """A frame in which one value of the header is another, perhaps of another type."""
    header = place = row(envelope)
    at = r.randrange(len(place))
    while isinstance(place[at], list) and place[at] and r.random() < 0.8:
        place = place[at]
        at = r.randrange(len(place))
    place[at] = r.choice(
        [None, True, -1, 0, 1, 2**40, 0.5, float("nan"), "", "x", "evil-1", [], [0], [[1]], [None] * 9]
    )
    return frame_of(header)


def _attack(r: random.Random, i: int) -> list[bytes]:
    greeting = hello(f"evil-{i}")
    valid = asked(f"s{i}", f"evil-{i}")
    match i % 5:
        case 0:
            return [r.randbytes(r.randint(0, 300))]
        case 1:
            return [_mutated(r, greeting), valid]
        case 2:
            return [greeting, r.randbytes(r.randint(1, 300))]
        case 3:
            return [greeting, _with_another_value(r, Envelope(f"evil-{i}", "cloud-0", request(f"s{i}", f"evil-{i}")))]
        case _:
            return [greeting, *(_mutated(r, valid) for _ in range(3))]


def test_random_bytes_and_broken_messages_leave_the_server_serving() -> None:
    async def one(address: str, frames: list[bytes]) -> str:
        async with raw(address) as call:
            with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # refused already
                for frame in frames:
                    await call.write(frame)
                await call.done_writing()
            return (await ending(call))[0]

    async def scenario() -> None:
        cloud, r = FakeSink(), random.Random(1)
        async with listening(cloud) as (server, address):
            codes = {await one(address, _attack(r, i)) for i in range(300)}
            await serves(cloud, address)
            known = {"OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "INTERNAL"}
            assert {"OK", "INVALID_ARGUMENT"} <= codes <= known  # INTERNAL may hide the others (grpc #36066)
            assert not server._connections.connections

    run_scenario(scenario)


def test_bytes_that_are_not_http_leave_the_server_serving() -> None:
    async def scenario() -> None:
        cloud, r = FakeSink(), random.Random(2)
        async with listening(cloud) as (_, address):
            host, _, port = address.rpartition(":")
            for garbage in (b"GET / HTTP/1.1\r\n\r\n", r.randbytes(10_000), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" * 50):
                reader, writer = await soon(asyncio.open_connection(host, int(port)))
                writer.write(garbage)
                with suppress(ConnectionError):
                    await soon(reader.read(1000))
                writer.close()
                with suppress(ConnectionError):
                    await soon(writer.wait_closed())
            await serves(cloud, address)

    run_scenario(scenario)


def test_contradicting_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="handshake_timeout_s=0"):
        Limits(handshake_timeout_s=0)
    with pytest.raises(ValueError, match="holds less than one message"):
        Limits(outbox_nbytes=10)
    with pytest.raises(ValueError, match="at least backoff_s"):
        Limits(backoff_s=20)
