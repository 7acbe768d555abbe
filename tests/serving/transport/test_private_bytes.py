"""What crosses a real stream over loopback, byte by byte: hidden states, and nothing that names a token."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import pytest

from serving.drivers.clock import ScriptedClock
from serving.drivers.real_time import RealTimeDriver
from serving.drivers.simulator import ComputeResource
from serving.engines.torch import draft_heads
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import DecomposedModel, load_model
from serving.engines.torch.tensor_store import TensorStore
from serving.learned.medusa import MedusaHeads
from serving.messages import (
    DraftWork,
    EmitTokens,
    ForwardWork,
    GenerationRequest,
    Message,
    Outcome,
    Release,
    Reply,
    Request,
    RequestArrived,
    SequenceSlice,
    Span,
    Work,
)
from serving.nodes.device import Device
from serving.nodes.worker import Worker
from serving.policy.policy import Policy
from serving.policy.slots.draft import MedusaDraft, WindowDraft
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.payload import HiddenStatePayload
from serving.policy.slots.placement import UShapedPlacement
from serving.policy.slots.prefill import ChunkedPrefill
from serving.transport.client import TransportClient
from serving.transport.frame import Envelope, FrameDecoder
from serving.transport.limits import Limits, PeerExpectations
from serving.transport.server import TransportServer
from tests.support.policies import policy
from tests.support.tiny_models import save_checkpoint

RUNNER = asyncio.Runner()
"""One loop for all: gRPC's poller may lose events of a new loop while those of a closed one come in."""
LAYERS, SHALLOW, LIMIT = 4, 1, 16
PROMPT = tuple(range(130, 290, 7))
ENDS = (1, 301)
MEDUSA = MedusaHeads(2, ((0,), (1,), (0, 0), (0, 1)), 1)
PRIVATE = {
    "hat": {"draft": WindowDraft(4, "confidence", 0.001), "prefill": ChunkedPrefill(8, "first")},
    "u_shape": {},
    "u_medusa": {"draft": MedusaDraft(MEDUSA)},
}
NUMBERS = ("fp32", "fp16", "bf16", "int8")


@dataclass
class Overheard:
    """Frames as they came from and went to a device."""

    up: list[bytes] = field(default_factory=list)
    down: list[bytes] = field(default_factory=list)
    text: list[int] = field(default_factory=list)

    @property
    def envelopes(self) -> list[Envelope]:
        decoder = FrameDecoder(Limits(), PeerExpectations(), with_tensors=True)
        frames = [decoder.decode(data)[0] for data in (*self.up, *self.down)]
        return [frame for frame in frames if isinstance(frame, Envelope)]

    @property
    def requests(self) -> list[Request]:
        return [each.message for each in self.envelopes if isinstance(each.message, Request)]


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


class Eavesdropper(TransportServer):
    heard: Overheard

    async def _handle_stream(self, request: Any, context: Any) -> None:
        await super()._handle_stream(request, Context(context, self.heard))


@dataclass
class Ears:
    live: RealTimeDriver
    met: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self, sender: str, to: str, message: Message) -> None:
        self.live.receive(to, message)

    def peers_lost(self, nodes: tuple[str, ...]) -> None:
        self.met.clear()

    def peers_restored(self, nodes: tuple[str, ...]) -> None:
        self.met.set()


@dataclass
class OnChip:
    """The drafter's engine and the target's, on one chip; how long things take does not matter."""

    drafter: TorchEngine
    target: TorchEngine

    def execute(self, work: Work) -> tuple[Outcome, float]:
        return (self.drafter if isinstance(work, DraftWork) else self.target).execute(work)[0], 0.01

    def drop(self, session: str, first: int | None) -> None:
        (self.drafter if first is None else self.target).drop(session, first)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DecomposedModel:
    path: Path = tmp_path_factory.mktemp("private")
    return load_model(save_checkpoint(path, " ".join(f"w{i}" for i in range(300)), LAYERS))


def chips(model: DecomposedModel, p: Policy) -> tuple[OnChip, OnChip]:
    """The device's and the cloud's, each with a store of its own."""
    near, far, number = TensorStore(), TensorStore(), p.payload.hidden_dtype
    split = len(p.placement.hops(LAYERS, LAYERS)) > 1
    proposer = (
        draft_heads.MedusaProposer(draft_heads.init_medusa_heads(model, 2), MEDUSA, 302) if p.draft.medusa else None
    )
    drafts = draft_heads.attach_adapter(model, SHALLOW, draft_heads.init_adapter(model, SHALLOW)) if split else model
    here = TorchEngine(model, tensor_store=near, hidden_dtype=number, proposer=proposer)
    there = TorchEngine(
        model.restricted_to(Span(SHALLOW, LAYERS)) if split else model, tensor_store=far, hidden_dtype=number
    )
    return OnChip(TorchEngine(drafts, tensor_store=near), here), OnChip(there, there)


async def spoken(model: DecomposedModel, p: Policy) -> Overheard:
    """A call over a real stream."""
    live, near, far = RealTimeDriver(ScriptedClock(), pace="hardware"), *chips(model, p)
    hops, tiers, heard = p.placement.hops(LAYERS, LAYERS), {"cloud": ("cloud",)}, Overheard()
    live.add("device", Device("device", p, hops, tiers, 0, hidden_nbytes=64), ComputeResource(near))
    live.add("cloud", Worker("cloud", p, tiers), ComputeResource(far))

    def deliver(d: EmitTokens, _: float) -> None:
        heard.text += d.tokens

    live.on_emit(deliver)
    here, there = Ears(live), Ears(live)
    listener = Eavesdropper(("cloud",), there, far.target.tensor_store)
    listener.heard = heard
    dialler = TransportClient(("device",), here, near.target.tensor_store, await listener.start())
    await dialler.start()
    await asyncio.wait_for(asyncio.gather(here.met.wait(), there.met.wait()), 10)
    live.add_remote("cloud", dialler.send)
    live.add_remote("device", listener.send)
    try:
        live.post(0.0, "device", RequestArrived(GenerationRequest("s", PROMPT, LIMIT, ENDS)))
        await asyncio.wait_for(live.run(lambda: False), 10)
    finally:
        live.close()
        await dialler.stop(1.0)
        await listener.stop(1.0)
    return heard


def overheard(model: DecomposedModel, name: str, number: Any = "fp32", **override: Any) -> Overheard:
    if name in PRIVATE:
        override = {
            "placement": UShapedPlacement(SHALLOW),
            "payload": HiddenStatePayload(number),
            **PRIVATE[name],
            **override,
        }
    return RUNNER.run(spoken(model, policy(name, **override)))


def packed(tokens: tuple[int, ...]) -> bytes:
    """As MessagePack writes them in a header."""
    return b"".join(map(msgpack.packb, tokens))


def traces(heard: Overheard, tokens: tuple[int, ...]) -> Iterator[bytes]:
    """Any six tokens in a row, in any form in which numbers are written down, where they occur."""
    said = [*heard.up, *heard.down]
    for at in range(len(tokens) - 5):
        six = tokens[at : at + 6]
        forms = [packed(six), *(b"".join(t.to_bytes(n, "little") for t in six) for n in (2, 4, 8))]
        yield from (form for form in forms if any(form in data for data in said))


def own_text(model: DecomposedModel) -> tuple[int, ...]:
    engine, text = TorchEngine(model), list(PROMPT)
    at = 0
    while len(text) < len(PROMPT) + LIMIT and text[-1] not in ENDS:
        seq = SequenceSlice("own", at, len(text) - at, tuple(text[at:]), 0, "greedy")
        ((result,), _), at = engine.execute(ForwardWork(Span(0, LAYERS, True, True), (seq,), ("last",))), len(text)
        assert result.verdict
        text.append(result.verdict.next_token)
    return tuple(text[len(PROMPT) :])


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", PRIVATE)
def test_no_byte_on_the_wire_reveals_a_token(name: str, number: str, model: DecomposedModel) -> None:
    heard = overheard(model, name, number)
    assert {type(envelope.message) for envelope in heard.envelopes} == {Request, Release}
    for request in heard.requests:
        assert not [*request.slice.tokens, *request.slice.draft_probs, *request.stop_tokens]
    assert list(traces(heard, (*PROMPT, *heard.text))) == []
    assert b"w130" not in b"".join(heard.up)
    for to, rows in (("cloud", len(PROMPT)), ("device", 1)):  # and yet all of it was computed
        states = [e.tensors[0].shape[0] for e in heard.envelopes if e.to == to and isinstance(e.message, Request)]
        assert sum(states) >= rows + len(heard.text) // 5
    if number == "fp32":
        assert tuple(heard.text) == own_text(model)


def test_the_check_detects_tokens_that_are_sent(model: DecomposedModel) -> None:
    heard = overheard(model, "sled", kv_cache=PrefixCaching(), draft=WindowDraft(2))
    assert any(request.slice.tokens for request in heard.requests)
    assert any(request.stop_tokens for request in heard.requests)
    assert any(isinstance(envelope.message, Reply) for envelope in heard.envelopes)
    assert packed(PROMPT[:8]) in b"".join(heard.up)
    assert list(traces(heard, PROMPT))
    assert tuple(heard.text) == own_text(model)
