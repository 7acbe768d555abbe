"""Drafts sent twice over the real wire format, with full and with compressed distributions, on models of random
weights and a real vocabulary; for the tests and for benchmarks/compression.py.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers

from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import decompose
from serving.engines.torch.sampling import support_size
from serving.messages import (
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    ForwardWork,
    Hop,
    Request,
    SamplingParams,
    SequenceSlice,
    Span,
    Verdict,
)
from serving.transport import tensors
from serving.transport.connection import ReceivedTensors
from serving.transport.frame import Envelope, FrameDecoder, encode_message
from serving.transport.limits import Limits, PeerExpectations

VOCABULARY = 32_000
"""Llama-2's, and Synera's example in section 4.2."""
GAMMA = 4
PROMPT_TOKENS = 16
LAYERS = 2


@dataclass(frozen=True)
class Size:
    """Bytes of one request as a frame, and of its distributions alone."""

    nbytes: int
    odds_nbytes: int


@dataclass(frozen=True)
class Question:
    """One chunk verified with its full distributions and with compressed ones."""

    entropies: tuple[float, ...]
    """Entropies of the drafter's distributions, in nats."""
    whole: Size
    compressed: Size
    kept: tuple[int, ...]
    """Tokens named per compressed distribution; 0: all. Empty where none is sent."""
    verdicts: tuple[Verdict, Verdict]
    """After whole and after compressed distributions."""


def device_model(nats: float, hidden: int) -> Any:
    """A Llama of random weights whose head is scaled so that the mean entropy of a next token is `nats`."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=LAYERS,
        num_attention_heads=4, max_position_embeddings=512, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.inference_mode():
        logits = model(torch.stack([prompt(-1 - i) for i in range(4)])).logits.flatten(0, 1)
        model.lm_head.weight.mul_(_scale(logits, nats))
    return model


def _scale(logits: torch.Tensor, nats: float) -> float:
    """The factor by which logits get a mean entropy of `nats`, found by bisection."""
    low, high = 0.0, 16.0 / float(logits.std())
    for _ in range(12):
        middle = (low + high) / 2
        odds = (logits * middle).softmax(-1)
        flat = float(-(odds * odds.clamp_min(1e-30).log()).sum(-1).mean()) > nats
        low, high = (middle, high) if flat else (low, middle)
    return low


def cloud_model(device: Any, noise: float) -> Any:
    """One that often agrees: each weight of the device's with this share of its matrix's deviation added at random."""
    model, generator = deepcopy(device), torch.Generator().manual_seed(1)
    with torch.inference_mode():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.add_(torch.randn(weight.shape, generator=generator), alpha=noise * float(weight.std()))
    return model


def prompt(number: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (PROMPT_TOKENS,), generator=torch.Generator().manual_seed(number % 2**31))


class Pair:
    """A device and a cloud, each with a store of its own; between them frames alone."""

    def __init__(self, nats: float = 2.0, hidden: int = 64, noise: float = 0.02) -> None:
        small = device_model(nats, hidden)
        large = cloud_model(small, noise)
        self.device, self.cloud = TorchEngine(decompose(small)), TorchEngine(decompose(large))
        self._route = (Hop("cloud", Span(0, LAYERS, True, True)),)
        self._decoder = FrameDecoder(Limits(), PeerExpectations(VOCABULARY, hops=self._route), with_tensors=True)
        self._luggage = ReceivedTensors(self.cloud.tensor_store, Limits().tensors_nbytes)

    def questions(self, number: int, chunks: int, sampling: SamplingParams | None) -> Iterator[Question]:
        """The chunks of one session, one after the other as verdicts commit them."""
        session, text = f"device-0/{number}", prompt(number).tolist()
        here = there = 0  # how long the caches are
        for round_ in range(chunks):
            ask = partial(self._ask, session, text, here, there, round_, sampling)
            (drafted, whole, verdict), (again, compressed, second) = ask(True), ask(False)
            assert drafted.tokens == again.tokens, "the same random numbers must draft the same tokens"
            named = tuple(support_size(self.device.tensor_store.get(blob)) for blob in again.draft_probs)
            yield Question(again.scores["entropy"], whole, compressed, named, (verdict, second))
            here = len(text) + min(verdict.accepted, GAMMA - 1)
            there = len(text) + verdict.accepted
            text += [*drafted.tokens[: verdict.accepted], verdict.next_token]

    def _ask(
        self,
        session: str,
        text: list[int],
        here: int,
        there: int,
        round_: int,
        sampling: SamplingParams | None,
        whole: bool,
    ) -> tuple[DraftOutcome, Size, Verdict]:
        feed, stop = tuple(text[here:]), DraftStopRule(GAMMA)
        work = DraftWork(
            session, here, feed, stop, requested_scores=("entropy",), sampling=sampling, full_draft_probs=whole
        )
        drafted, _ = self.device.execute(work)
        assert isinstance(drafted, DraftOutcome)
        sent, rule = (*text[there:], *drafted.tokens), "sample" if sampling else "greedy"
        seq = SequenceSlice(session, there, len(sent), sent, GAMMA, rule, sampling, draft_probs=drafted.draft_probs)
        size, arrived = self._through(
            Request(round_, seq, self._route, 0, ("cloud-0",), "device-0", expected_tokens=GAMMA)
        )
        (result,), _ = self.cloud.execute(ForwardWork(self._route[0].span, (arrived,), ("last",)))
        return drafted, size, result.verdict

    def _through(self, message: Request) -> tuple[Size, SequenceSlice]:
        """The slice as the receiver decodes it, with its tensors in the receiver's store."""
        packed = [tensors.pack(self.device.tensor_store.get(ref)) for ref in message.slice.draft_probs]
        frame = encode_message("device-0", "cloud-0", message, packed)
        arrived, carried = self._decoder.decode(frame)
        self._luggage.add(carried)
        assert isinstance(arrived, Envelope)
        assert isinstance(arrived.message, Request)
        return Size(len(frame), sum(len(tensor.data) for _, tensor in carried)), arrived.message.slice
