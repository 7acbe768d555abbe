"""What crosses a real stream over loopback, byte by byte: hidden states, and nothing that names a token."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
from fake_world import policy

from serving.drivers.clock import Script
from serving.drivers.real_time import Live
from serving.drivers.simulator import Chip
from serving.engines.torch import draft_heads
from serving.engines.torch.engine import Engine
from serving.engines.torch.model import Model, open_model
from serving.engines.torch.tensor_store import Blobs
from serving.learned.medusa import Medusa
from serving.messages import Begin, Call, Deliver, Forward, Generate, Message, Outcome, Rows, Span, Work
from serving.nodes.device import Device
from serving.nodes.worker import Worker
from serving.policy.policy import Policy
from serving.policy.slots.draft import Heads, Window
from serving.policy.slots.kv_cache import Reuse
from serving.policy.slots.payload import Hidden
from serving.policy.slots.placement import UShape
from serving.policy.slots.prefill import Parts
from serving.transport import tandem_pb2 as pb
from serving.transport.client import Dialler
from serving.transport.server import Listener

RUNNER = asyncio.Runner()
"""One loop for all: gRPC's poller may lose events of a new loop while those of a closed one come in."""
LAYERS, SHALLOW, LIMIT = 4, 1, 16
PROMPT = tuple(range(130, 290, 7))
ENDS = (1, 301)
MEDUSA = Medusa(2, ((0,), (1,), (0, 0), (0, 1)), 1)
PRIVATE = {
    "hat": {"draft": Window(4, "confidence", 0.001), "prefill": Parts(8, "first")},
    "u_shape": {},
    "u_medusa": {"draft": Heads(MEDUSA)},
}
NUMBERS = ("fp32", "fp16", "bf16", "int8")


@dataclass
class Overheard:
    """Frames as they came from and went to a device."""

    up: list[bytes] = field(default_factory=list)
    down: list[bytes] = field(default_factory=list)
    text: list[int] = field(default_factory=list)

    @property
    def envelopes(self) -> list[pb.Envelope]:
        frames = [pb.Frame.FromString(data) for data in (*self.up, *self.down)]
        return [frame.envelope for frame in frames if frame.WhichOneof("kind") == "envelope"]


class Context:
    """A stream's, whose every byte is written down."""

    def __init__(self, context: Any, heard: Overheard) -> None:
        self._context, self._heard = context, heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def read(self) -> Any:
        data = await self._context.read()
        if isinstance(data, bytes):
            self._heard.up.append(data)
        return data

    async def write(self, data: bytes) -> None:
        self._heard.down.append(data)
        await self._context.write(data)


class Eavesdropper(Listener):
    heard: Overheard

    async def _talk(self, request: Any, context: Any) -> None:
        await super()._talk(request, Context(context, self.heard))


@dataclass
class Ears:
    live: Live
    met: asyncio.Event = field(default_factory=asyncio.Event)

    async def heard(self, sender: str, to: str, message: Message) -> None:
        self.live.heard(to, message)

    def lost(self, nodes: tuple[str, ...]) -> None:
        self.met.clear()

    def joined(self, nodes: tuple[str, ...]) -> None:
        self.met.set()


@dataclass
class OnChip:
    """The drafter's engine and the target's, on one chip; how long things take does not matter."""

    drafter: Engine
    target: Engine

    def execute(self, work: Work) -> tuple[Outcome, float]:
        return (self.drafter if isinstance(work, Generate) else self.target).execute(work)[0], 0.01

    def drop(self, session: str, first: int | None) -> None:
        (self.drafter if first is None else self.target).drop(session, first)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    torch.set_num_threads(1)
    path: Path = tmp_path_factory.mktemp("private")
    return open_model(checkpoints.save(path, " ".join(f"w{i}" for i in range(300)), LAYERS))


def chips(model: Model, p: Policy) -> tuple[OnChip, OnChip]:
    """The device's and the cloud's, each with a store of its own."""
    near, far, number = Blobs(), Blobs(), p.exchange.number
    split = len(p.placement.route(LAYERS, LAYERS)) > 1
    proposer = draft_heads.Proposer(draft_heads.blank_heads(model, 2), MEDUSA, 302) if p.draft.medusa else None
    drafts = draft_heads.attached(model, SHALLOW, draft_heads.blank_adapter(model, SHALLOW)) if split else model
    here = Engine(model, blobs=near, number=number, heads=proposer)
    there = Engine(model.only(Span(SHALLOW, LAYERS)) if split else model, blobs=far, number=number)
    return OnChip(Engine(drafts, blobs=near), here), OnChip(there, there)


async def spoken(model: Model, p: Policy) -> Overheard:
    """A call over a real stream."""
    live, near, far = Live(Script(), pace="hardware"), *chips(model, p)
    hops, tiers, heard = p.placement.route(LAYERS, LAYERS), {"cloud": ("cloud",)}, Overheard()
    live.add("device", Device("device", p, hops, tiers, 0, row_nbytes=64), Chip(near))
    live.add("cloud", Worker("cloud", p, tiers), Chip(far))

    def deliver(d: Deliver, _: float) -> None:
        heard.text += d.tokens

    live.on_deliver(deliver)
    here, there = Ears(live), Ears(live)
    listener = Eavesdropper(("cloud",), there, far.target.blobs)
    listener.heard = heard
    dialler = Dialler(("device",), here, near.target.blobs, await listener.start())
    await dialler.start()
    await asyncio.wait_for(asyncio.gather(here.met.wait(), there.met.wait()), 10)
    live.carry("cloud", dialler.send)
    live.carry("device", listener.send)
    try:
        live.post(0.0, "device", Begin(Call("s", PROMPT, LIMIT, ENDS)))
        await asyncio.wait_for(live.run(lambda: False), 10)
    finally:
        live.close()
        await dialler.stop(1.0)
        await listener.stop(1.0)
    return heard


def overheard(model: Model, name: str, number: Any = "fp32", **override: Any) -> Overheard:
    if name in PRIVATE:
        override = {"placement": UShape(SHALLOW), "exchange": Hidden(number), **PRIVATE[name], **override}
    return RUNNER.run(spoken(model, policy(name, **override)))


def packed(tokens: tuple[int, ...]) -> bytes:
    """As protobuf packs them, without tag and length."""
    return bytes(pb.Rows(tokens=tokens).SerializeToString()[2:])


def traces(heard: Overheard, tokens: tuple[int, ...]) -> Iterator[bytes]:
    """Any six tokens in a row, in any form in which numbers are written down, where they occur."""
    said = [*heard.up, *heard.down]
    for at in range(len(tokens) - 5):
        six = tokens[at : at + 6]
        forms = [packed(six), *(b"".join(t.to_bytes(n, "little") for t in six) for n in (2, 4, 8))]
        yield from (form for form in forms if any(form in data for data in said))


def own_text(model: Model) -> tuple[int, ...]:
    engine, text = Engine(model), list(PROMPT)
    at = 0
    while len(text) < len(PROMPT) + LIMIT and text[-1] not in ENDS:
        rows = Rows("own", at, len(text) - at, tuple(text[at:]), 0, "greedy")
        ((result,), _), at = engine.execute(Forward(Span(0, LAYERS, True, True), (rows,), ("last",))), len(text)
        assert result.verdict
        text.append(result.verdict.token)
    return tuple(text[len(PROMPT) :])


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", PRIVATE)
def test_no_byte_that_crosses_names_a_token(name: str, number: str, model: Model) -> None:
    heard = overheard(model, name, number)
    said = heard.envelopes
    assert {envelope.WhichOneof("message") for envelope in said} == {"request", "release"}
    for envelope in said:
        rows = envelope.request.rows
        assert not [*rows.tokens, *rows.odds, *envelope.request.ends]
    assert list(traces(heard, (*PROMPT, *heard.text))) == []
    assert b"w130" not in b"".join(heard.up)
    for to, rows in (("cloud", len(PROMPT)), ("device", 1)):  # and yet all of it was computed
        states = [e.request.rows.blob.tensor.shape[0] for e in said if e.to == to and e.HasField("request")]
        assert sum(states) >= rows + len(heard.text) // 5
    if number == "fp32":
        assert tuple(heard.text) == own_text(model)


def test_where_tokens_travel_they_are_noticed(model: Model) -> None:
    heard = overheard(model, "sled", kv_cache=Reuse(), draft=Window(2))
    said = heard.envelopes
    assert any(envelope.request.rows.tokens for envelope in said)
    assert any(envelope.request.ends for envelope in said)
    assert any(envelope.HasField("reply") for envelope in said)
    assert packed(PROMPT[:8]) in b"".join(heard.up)
    assert list(traces(heard, PROMPT))
    assert tuple(heard.text) == own_text(model)
