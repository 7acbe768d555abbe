"""What one message costs on this machine: microseconds of encoding and of decoding, and a round trip over loopback.

Medians, for requests with a few tokens, a prompt and hidden states, a reply and a load report. The limit is ours.
"""

import asyncio
import sys
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import torch

from serving.messages import (
    Hop,
    LoadReport,
    Message,
    Reply,
    Request,
    SamplingParams,
    SequenceSlice,
    Span,
    TensorRef,
    Verdict,
)
from serving.transport import tensors
from serving.transport.client import TransportClient
from serving.transport.frame import FrameDecoder, encode_message
from serving.transport.limits import Limits, PeerExpectations
from serving.transport.server import TransportServer

HOPS = (Hop("cloud", Span(0, 8, embedding=True, lm_head=True)),)
REPLY = Reply("s", 3, 100, Verdict(3, 12345), ("cloud-0",), 0, 0.0123456)
VOCAB_SIZE, HIDDEN_SIZE = 151_936, 4096
ROUNDS, ROUND_TRIPS = 25, 1000
LIMIT_MS = 2.0


def request(num_tokens: int, hidden: TensorRef | None = None) -> Request:
    tokens = tuple(7919 * i % VOCAB_SIZE for i in range(num_tokens))
    seq = SequenceSlice("s", 0, num_tokens, tokens, 1, "greedy", SamplingParams(1.0, 0, 0.9, 7), hidden_states=hidden)
    return Request(0, seq, HOPS, 0, ("cloud-0",), "device-0", slack_s=0.1234, stop_tokens=(2,), expected_tokens=2.3)


def messages() -> dict[str, tuple[str, str, Message, torch.Tensor | None]]:
    """By name: sender, receiver, the message and its hidden states."""
    up, down, hidden = ("device-0", "cloud-0"), ("cloud-0", "device-0"), torch.ones(64, HIDDEN_SIZE).half()
    return {
        "request of 4 tokens": (*up, request(4), None),
        "request of 256 tokens": (*up, request(256), None),
        "request of 4,000 tokens": (*up, request(4000), None),
        "hidden states, 512 KiB": (*up, request(64, TensorRef("h", hidden.nbytes)), hidden),
        "reply": (*down, REPLY, None),
        "load report": (*down, LoadReport("cloud-0", 0.1234, 0.00012, 0.033, 1234.0), None),
    }


def median_us(call: Callable[[], object]) -> float:
    once_s = timeit.timeit(call, number=5) / 5
    number = max(1, int(0.01 / once_s))
    return median(timeit.repeat(call, number=number, repeat=ROUNDS, timer=time.process_time)) / number * 1e6


def encode(sender: str, to: str, message: Message, hidden: torch.Tensor | None) -> bytes:
    return encode_message(sender, to, message, [] if hidden is None else [tensors.pack(hidden)])


def print_codec() -> None:
    for name, (sender, to, message, hidden) in messages().items():
        known = PeerExpectations(VOCAB_SIZE, HIDDEN_SIZE, HOPS)
        decoder = FrameDecoder(Limits(), known, with_tensors=hidden is not None)
        encoded = partial(encode, sender, to, message, hidden)
        frame = encoded()
        decoded_us = median_us(partial(decoder.decode, frame))
        print(f"{name}: {len(frame):,} bytes, encoded in {median_us(encoded):.1f} us, decoded in {decoded_us:.1f} us")


@dataclass
class Sink:
    """Takes messages, and answers a request with a reply."""

    transport: TransportServer | TransportClient | None = None
    received: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)

    async def receive(self, sender: str, to: str, message: Message) -> None:
        if self.transport and isinstance(message, Request):
            self.transport.send(to, sender, REPLY)
        self.received.put_nowait(message)

    def peers_lost(self, nodes: tuple[str, ...]) -> None: ...

    def peers_restored(self, nodes: tuple[str, ...]) -> None: ...


async def round_trips_ms(num_tokens: int) -> list[float]:
    cloud, device = Sink(), Sink()
    server = cloud.transport = TransportServer(("cloud-0",), cloud)
    client = TransportClient(("device-0",), device, None, await server.start())
    await client.start()
    found, asked = [], request(num_tokens)
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        client.send("device-0", "cloud-0", asked)
        await device.received.get()
        found.append(1e3 * (time.perf_counter() - began))
    await client.stop(1.0)
    await server.stop(1.0)
    return sorted(found)


def main() -> bool:
    print_codec()
    medians = []
    with asyncio.Runner() as runner:
        for num_tokens in (4, 256):
            found = runner.run(round_trips_ms(num_tokens))
            medians.append(median(found))
            print(
                f"round trip over loopback, {num_tokens} tokens: median {medians[-1]:.2f} ms, "
                f"99th percentile {found[int(0.99 * len(found))]:.2f} ms; limit {LIMIT_MS:g} ms"
            )
    return max(medians) <= LIMIT_MS


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
