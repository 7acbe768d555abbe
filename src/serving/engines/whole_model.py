"""Drafts with a model that shows its logits after a text, and nothing of its layers: a graph, or a library's model."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from serving.core.importance import importance_scores
from serving.core.scores import Scorers
from serving.core.stop_strings import TokenText
from serving.engines.draft_batch import execute_one_by_one
from serving.engines.torch.draft import DraftBuilder, StepOutput
from serving.engines.torch.tensor_store import TensorStore
from serving.hardware.latency import ForwardLoad, batch_load
from serving.messages import DraftBatch, DraftBatchOutcome, DraftOutcome, DraftStopRule, DraftWork


class TextCache(Protocol):
    """What the model keeps of one session's text."""

    @property
    def length(self) -> int:
        """Tokens that are cached."""
        ...


CacheT = TypeVar("CacheT", bound=TextCache)


class WholeModelDrafter(ABC, Generic[CacheT]):
    """Executes draft work as `serving.engines.torch.engine.TorchEngine` does.

    Args:
        described: what runs the model, for errors ("a graph of onnxruntime").
        num_layers: of the model; a forward is charged for all of them.
        token_text: the tokenizer's, for drafts that a stop string ends.
    """

    def __init__(
        self, described: str, num_layers: int, tensor_store: TensorStore, scorers: Scorers, token_text: TokenText
    ) -> None:
        self.tensor_store = tensor_store
        self._described, self._num_layers, self._scorers, self._token_text = described, num_layers, scorers, token_text

    @abstractmethod
    def _open(self, session: str, start: int) -> CacheT:
        """The session's cache, rolled back to `start` tokens. Raises CacheHoleError if it is shorter."""

    @abstractmethod
    def _feed(self, cache: CacheT, tokens: Sequence[int]) -> None:
        """Appends tokens to the cache."""

    @abstractmethod
    def _step(self, cache: CacheT, tokens: Sequence[int]) -> StepOutput:
        """Appends tokens to the cache; the output after the last one."""

    @abstractmethod
    def _peek(self, cache: CacheT, tokens: Sequence[int]) -> StepOutput:
        """The output after tokens that the cache does not keep."""

    def draft(self, work: DraftWork | DraftBatch) -> tuple[DraftOutcome | DraftBatchOutcome, tuple[ForwardLoad, ...]]:
        """Returns the outcome, and the load of each forward pass as the torch engine counts it.

        The sessions of a batch run one by one, as branches do, but are charged as one pass.

        Raises ValueError for incomplete work or for what the model does not show (early exit, importance),
        CacheHoleError for work that begins after the end of a cache.
        """
        return execute_one_by_one(work, self._draft) if isinstance(work, DraftBatch) else self._draft(work)

    def _draft(self, work: DraftWork) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        if work.early_exit is not None or importance_scores(work.requested_scores):
            what = "early exit" if work.early_exit is not None else "importance"
            raise ValueError(f"session {work.session!r} asks for {what}, which {self._described} does not show")
        cache = self._open(work.session, work.start)
        if work.branches:
            return self._draft_branches(
                DraftBuilder(replace(work, stop_rule=DraftStopRule(1)), self.tensor_store, self._scorers), cache
            )
        builder = DraftBuilder(work, self.tensor_store, self._scorers, self._token_text)
        loads = self._draft_tokens(builder, cache) if work.stop_rule.max_tokens else self._fill_cache(work, cache)
        return builder.build(cache.length, None), loads

    def _fill_cache(self, work: DraftWork, cache: CacheT) -> tuple[ForwardLoad, ...]:
        if not work.input_tokens:
            return ()
        load = self._load(cache, len(work.input_tokens), 0)
        self._feed(cache, work.input_tokens)
        return (load,)

    def _draft_tokens(self, builder: DraftBuilder, cache: CacheT) -> tuple[ForwardLoad, ...]:
        work, feed, loads = builder.work, builder.work.input_tokens, list[ForwardLoad]()
        if not feed:
            raise ValueError(
                f"session {work.session!r} asks for {work.stop_rule.max_tokens} tokens with nothing to feed; a "
                "model needs a token"
            )
        while feed:
            loads.append(self._load(cache, len(feed), 1))
            output = self._step(cache, feed)
            more = builder.add_token(output, cache.length) and len(builder.tokens) < work.stop_rule.max_tokens
            feed = (builder.tokens[-1],) if more else ()
        return tuple(loads)

    def _draft_branches(self, builder: DraftBuilder, cache: CacheT) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        """One token after each branch; the cache stays as it was.

        Branches run one by one, but are charged as one pass over a tree, which the named chip would run.
        """
        work = builder.work
        if not all(work.branches):
            raise ValueError(f"session {work.session!r} asks for a branch without tokens; a model needs a token")
        for branch in work.branches:
            builder.add_token(self._peek(cache, branch), cache.length + len(branch))
        done = self._load(cache, sum(map(len, work.branches)), len(work.branches))
        return builder.build(cache.length, None), (done,)

    def _load(self, cache: CacheT, num_tokens: int, head_rows: int) -> ForwardLoad:
        return batch_load(self._num_layers, [(cache.length, num_tokens)], float(head_rows))
