"""The device's model on onnxruntime: executes `DraftWork` as `serving.engines.torch.engine.TorchEngine` does."""

from dataclasses import replace
from pathlib import Path

import torch

from serving.core.importance import importance_scores
from serving.core.scores import NO_SCORERS, Scorers
from serving.core.stop_strings import TokenText, no_token_text
from serving.engines.draft_batch import execute_one_by_one
from serving.engines.onnx.session import OnnxCacheManager, OnnxOutput, OnnxScorer, OnnxSequenceCache, OnnxSession
from serving.engines.torch.draft import DraftBuilder, StepOutput
from serving.engines.torch.tensor_store import TensorStore
from serving.hardware.latency import ForwardLoad, batch_load
from serving.learned.mlp import sigmoid
from serving.messages import (
    DraftBatch,
    DraftBatchOutcome,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    ForwardWork,
    Work,
)


class OnnxEngine:
    """Drafts with an exported graph; every session has its own cache.

    Args:
        folder: written by the stage `device_graph`.
        tensor_store: shared by all engines of a process; default: its own.
        vocab_size: how many rows of the head are real tokens; the rest is padding, never chosen. Default: all.
        scorers: trained scores, by name. Those that were exported with the model run as graphs.
        threads: of onnxruntime.
        token_text: the tokenizer's, for drafts that a stop string ends.

    Raises ValueError for a vocabulary larger than the model's, or a folder without an export.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tensor_store: TensorStore | None = None,
        vocab_size: int | None = None,
        scorers: Scorers = NO_SCORERS,
        threads: int = 1,
        token_text: TokenText = no_token_text,
    ) -> None:
        self._token_text = token_text
        self._session = OnnxSession(folder, threads)
        self.header = header = self._session.header
        if vocab_size is not None and not 0 < vocab_size <= header.vocab_size:
            raise ValueError(f"vocabulary is {vocab_size}; the head of {folder} has {header.vocab_size} rows")
        self.tensor_store = TensorStore() if tensor_store is None else tensor_store
        self.cache = OnnxCacheManager(self._session.empty_cache())
        self._vocab_size = vocab_size or header.vocab_size
        exported = [name for name, each in scorers.items() if header.scorer_digests.get(name) == each.digest]
        self._scores_of_graph = [name for name in exported if name in header.scores_of_graph]
        graphs = {name: OnnxScorer(folder, name, scorers[name].digest, threads) for name in exported}
        self._scorers: Scorers = {**scorers, **graphs}

    @torch.inference_mode()
    def execute(self, work: Work) -> tuple[DraftOutcome | DraftBatchOutcome, tuple[ForwardLoad, ...]]:
        """Returns the outcome, and the load of each forward pass as the torch engine counts it.

        The sessions of a batch run one by one, as branches do, but are charged as one pass.

        Raises TypeError for a `ForwardWork`, ValueError for incomplete work or for what a graph cannot do (early exit,
        importance), CacheHoleError for work that begins after the end of a cache.
        """
        if isinstance(work, ForwardWork):
            raise TypeError("a device's model on onnxruntime runs whole: it drafts, and has no spans of layers to run")
        return execute_one_by_one(work, self._draft) if isinstance(work, DraftBatch) else self._draft(work)

    def _draft(self, work: DraftWork) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        if work.early_exit is not None or importance_scores(work.requested_scores):
            what = "early exit" if work.early_exit is not None else "importance"
            raise ValueError(f"session {work.session!r} asks for {what}, which a graph of onnxruntime does not show")
        cache = self.cache.open(work.session, work.start)
        if work.branches:
            return self._draft_branches(
                DraftBuilder(replace(work, stop_rule=DraftStopRule(1)), self.tensor_store, self._scorers), cache
            )
        builder = DraftBuilder(work, self.tensor_store, self._scorers, self._token_text)
        loads = self._draft_tokens(builder, cache) if work.stop_rule.max_tokens else self._fill_cache(work, cache)
        return builder.build(cache.length, None), loads

    def drop(self, session: str, first: int | None) -> None:
        """Frees the drafter's cache, and the drafts' distributions."""
        if first is None:
            self.cache.drop(session)
        self.tensor_store.discard_owner(f"odds/{session}")

    def _fill_cache(self, work: DraftWork, cache: OnnxSequenceCache) -> tuple[ForwardLoad, ...]:
        if not work.input_tokens:
            return ()
        load = self._load(cache, len(work.input_tokens), 0)
        cache.update(self._session.run(work.input_tokens, (), cache.keys_values()).present)
        return (load,)

    def _draft_tokens(self, builder: DraftBuilder, cache: OnnxSequenceCache) -> tuple[ForwardLoad, ...]:
        work, feed, loads = builder.work, builder.work.input_tokens, list[ForwardLoad]()
        if not feed:
            raise ValueError(
                f"session {work.session!r} asks for {work.stop_rule.max_tokens} tokens with nothing to feed; a "
                "model needs a token"
            )
        while feed:
            loads.append(self._load(cache, len(feed), 1))
            output = self._session.run(feed, (len(feed) - 1,), cache.keys_values())
            cache.update(output.present)
            more = (
                builder.add_token(self._step_output(output), cache.length)
                and len(builder.tokens) < work.stop_rule.max_tokens
            )
            feed = (builder.tokens[-1],) if more else ()
        return tuple(loads)

    def _draft_branches(
        self, builder: DraftBuilder, cache: OnnxSequenceCache
    ) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        """One token after each branch; the cache stays as it was.

        Branches run one by one, but are charged as one pass over a tree, which the named chip would run.
        """
        work, past = builder.work, cache.keys_values()
        if not all(work.branches):
            raise ValueError(f"session {work.session!r} asks for a branch without tokens; a model needs a token")
        for branch in work.branches:
            output = self._session.run(branch, (len(branch) - 1,), past)
            builder.add_token(self._step_output(output), cache.length + len(branch))
        done = self._load(cache, sum(map(len, work.branches)), len(work.branches))
        return builder.build(cache.length, None), (done,)

    def _step_output(self, output: OnnxOutput) -> StepOutput:
        given_scores = {name: sigmoid(float(output.score_logits[name][0])) for name in self._scores_of_graph}
        logits = torch.from_numpy(output.logits)[:, : self._vocab_size]
        return StepOutput(logits, torch.from_numpy(output.hidden_states), 1.0, given_scores)

    def _load(self, cache: OnnxSequenceCache, num_tokens: int, head_rows: int) -> ForwardLoad:
        return batch_load(self.header.layers, [(cache.length, num_tokens)], float(head_rows))
