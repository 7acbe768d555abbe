"""Hostile clients dial a cloud and send anything: noise, broken Hellos, requests with wrong bytes."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import grpc.aio

from serving.messages import Hop, Request, SequenceSlice, Span
from serving.transport.frame import Hello, encode_message
from serving.transport.stream import METHOD

STREAMS = 8


async def attack(address: str, r: random.Random) -> None:
    """A few hostile streams, one after the other; their answers are ignored."""
    for _ in range(STREAMS):
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(5):
                await (_send_noise(address, r) if r.random() < 0.25 else _send_frames(address, hostile_frames(r)))


def hostile_frames(r: random.Random) -> list[bytes]:
    name = f"evil-{r.randrange(1000)}"
    hello = Hello((name,), "soak", r.random() < 0.5, boot_id="b").encoded
    rows = SequenceSlice(f"of-{name}", 0, 3, (1, 2, r.randrange(1 << 20)), 1, "greedy")
    route = (Hop("cloud", Span(0, r.randrange(1, 40), embedding=True, lm_head=True)),)
    request = encode_message(name, "cloud-0", Request(0, rows, route, 0, ("cloud-0",), name))
    kind = r.randrange(4)
    if kind == 0:
        return [r.randbytes(r.randrange(300))]
    if kind == 1:
        return [_mutated(r, hello), request]
    if kind == 2:
        return [hello, r.randbytes(r.randrange(1, 300))]
    return [hello, request, *(_mutated(r, request) for _ in range(3))]


def _mutated(r: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(r.randint(1, 4)):
        at = r.randrange(len(out))
        out[at : at + r.randrange(3)] = r.randbytes(r.randrange(3))
        out = out or bytearray(b"\0")
    return bytes(out)


async def _send_noise(address: str, r: random.Random) -> None:
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(r.randbytes(r.randrange(1, 5000)))
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def _send_frames(address: str, said: list[bytes]) -> None:
    async with grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call: Any = channel.stream_stream(METHOD)()
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            for frame in said:
                await call.write(frame)
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
        call.cancel()
