"""A model on llama.cpp: executes draft work, and forward work over all its layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from serving.core.scores import NO_SCORERS, Scorers
from serving.core.stop_strings import TokenText, no_token_text
from serving.engines.llama_cpp.context import LlamaCache, LlamaModel
from serving.engines.torch.draft import StepOutput
from serving.engines.torch.forward import verdict
from serving.engines.torch.tensor_store import TensorStore
from serving.engines.whole_model import WholeModelDrafter
from serving.hardware.latency import ForwardLoad, batch_load
from serving.messages import ForwardWork, Outcome, SequenceSlice, SliceOutcome, Work

_NO_HIDDEN_STATE = torch.empty(1, 0)


@dataclass(frozen=True)
class SessionText:
    """A session's text in the cache."""

    cache: LlamaCache
    session: str

    @property
    def length(self) -> int:
        return self.cache.length(self.session)


class LlamaCppEngine(WholeModelDrafter[SessionText]):
    """Drafts and verifies with a GGUF model; every session keeps its text in the engine's own context.

    Args:
        model: its weights, which several engines may share.
        tensor_store: shared by all engines of a process; default: its own.
        vocab_size: how many rows of the head are real tokens; default: all.
        scorers: trained scores of logits, by name.
        threads: of llama.cpp.
        token_text: the tokenizer's, for drafts that a stop string ends.
        batch_invariant: every session has a context of its own, and computes every token alone.
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        tensor_store: TensorStore | None = None,
        vocab_size: int | None = None,
        scorers: Scorers = NO_SCORERS,
        threads: int = 1,
        token_text: TokenText = no_token_text,
        batch_invariant: bool = False,
    ) -> None:
        self.cache = LlamaCache(model, vocab_size or model.vocab_size, threads, batch_invariant)
        store = TensorStore() if tensor_store is None else tensor_store
        super().__init__("llama.cpp", model.layers, store, scorers, token_text)

    @torch.inference_mode()
    def execute(self, work: Work) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        """Returns the outcome of the work, and the load of each forward pass.

        Raises ValueError for incomplete work and for what llama.cpp does not show (a span of layers, hidden states, a
        tree of drafts, early exit, importance), CacheHoleError for work that begins after the end of a text.
        """
        return self._forward(work) if isinstance(work, ForwardWork) else self.draft(work)

    def _forward(self, work: ForwardWork) -> tuple[tuple[SliceOutcome, ...], tuple[ForwardLoad, ...]]:
        """All sessions of the batch in one pass."""
        for seq in work.slices:
            _check_slice(seq, work)
        for seq in work.slices:
            self.cache.open(seq.session, seq.start)
        outputs = [seq.num_drafts + 1 if seq.rule else 0 for seq in work.slices]
        found = self.cache.forward(
            [(seq.session, seq.tokens, count) for seq, count in zip(work.slices, outputs, strict=True)]
        )
        results = [self._judged(seq, logits) for seq, logits in zip(work.slices, found, strict=True)]
        cached = [(seq.start, seq.num_tokens) for seq in work.slices]
        return tuple(results), (batch_load(self._num_layers, cached, float(sum(outputs))),)

    def _judged(self, seq: SequenceSlice, logits: torch.Tensor) -> SliceOutcome:
        if not seq.rule:
            return SliceOutcome(None, None)
        found = verdict(seq, logits, logits.argmax(-1).tolist(), self.tensor_store)
        self.cache.truncate(seq.session, seq.start + seq.num_tokens - seq.num_drafts + found.accepted)
        return SliceOutcome(found, None)

    def drop(self, session: str, first: int | None) -> None:
        """Frees the session's text, of which an engine has one, and the drafts' distributions, as the torch engine."""
        self.cache.drop(session)
        self.tensor_store.discard_owner(f"odds/{session}", received_only=first is not None)

    def move(self, session: str, to: str) -> None:
        """The text of `session` becomes that of `to`."""
        self.cache.move(session, to)
        self.tensor_store.discard_owner(f"odds/{session}")

    def copy(self, session: str, to: str, length: int) -> None:  # noqa: ARG002
        """Raises TypeError: a plan refuses `policy/kv_cache=shared` where the cloud drafts on this engine."""
        raise TypeError("a draft model on llama.cpp copies no caches between sessions; choose policy/kv_cache=reuse")

    def _open(self, session: str, start: int) -> SessionText:
        self.cache.open(session, start)
        return SessionText(self.cache, session)

    def _feed(self, cache: SessionText, tokens: Sequence[int]) -> None:
        self.cache.forward([(cache.session, tokens, 0)])

    def _step(self, cache: SessionText, tokens: Sequence[int]) -> StepOutput:
        (logits,) = self.cache.forward([(cache.session, tokens, 1)])
        return StepOutput(logits, _NO_HIDDEN_STATE, 1.0)

    def _peek(self, cache: SessionText, tokens: Sequence[int]) -> StepOutput:
        return StepOutput(self.cache.peek(cache.session, tokens), _NO_HIDDEN_STATE, 1.0)


def _check_slice(seq: SequenceSlice, work: ForwardWork) -> None:
    if not (work.span.embedding and work.span.lm_head):
        raise ValueError(f"session {seq.session!r} asks for a span of layers; llama.cpp runs a model whole")
    if seq.parents is not None or seq.kept_tree_nodes is not None:
        raise ValueError(f"session {seq.session!r} sends a tree of drafts; on llama.cpp drafts are chains")
    if len(seq.tokens) != seq.num_tokens:
        raise ValueError(
            f"session {seq.session!r} has {seq.num_tokens} positions but {len(seq.tokens)} tokens to embed"
        )
    if sum(seq.session == other.session for other in work.slices) > 1:
        raise ValueError("a session has two slices in one forward, but its cache can only grow by one at a time")
