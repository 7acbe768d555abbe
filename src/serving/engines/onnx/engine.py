"""The device's model on onnxruntime: executes `DraftWork` as `serving.engines.torch.engine.TorchEngine` does, and
nothing else.
"""

from dataclasses import replace
from pathlib import Path

import torch

from serving.core.scores import IMPORTANCE, NO_SCORERS, ROUTE, Scorers
from serving.engines.onnx.session import OnnxCacheManager, OnnxOutput, OnnxRouter, OnnxSequenceCache, OnnxSession
from serving.engines.torch.draft import DraftBuilder, StepOutput
from serving.engines.torch.tensor_store import TensorStore
from serving.hardware.latency import ForwardLoad, batch_load
from serving.learned.mlp import sigmoid
from serving.messages import DraftOutcome, DraftStopRule, DraftWork, ForwardWork


class OnnxEngine:
    """Drafts; every session has its own cache.

    Args:
        folder: what the stage `device_graph` made.
        blobs: the store shared by all engines of a process; its own where absent.
        vocabulary: how many rows of the head are real tokens; the rest is padding and never written. All where absent.
        scorers: trained scores, by name. A router that was exported with the model is asked as a graph.
        threads: of onnxruntime.

    Raises ValueError for a vocabulary larger than the model's, and a folder that holds no export.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tensor_store: TensorStore | None = None,
        vocab_size: int | None = None,
        scorers: Scorers = NO_SCORERS,
        threads: int = 1,
    ) -> None:
        self._session = OnnxSession(folder, threads)
        self.header = header = self._session.header
        if vocab_size is not None and not 0 < vocab_size <= header.vocab_size:
            raise ValueError(f"vocabulary is {vocab_size}; the head of {folder} has {header.vocab_size} rows")
        self.tensor_store = TensorStore() if tensor_store is None else tensor_store
        self.cache = OnnxCacheManager(self._session.empty_cache())
        self._vocab_size = vocab_size or header.vocab_size
        own = ROUTE in scorers and header.router_digest == scorers[ROUTE].digest
        self._graph_has_router = own and header.has_router_output
        graph: Scorers = {ROUTE: OnnxRouter(folder, scorers[ROUTE].digest, threads)} if own else NO_SCORERS
        self._scorers: Scorers = {**scorers, **graph}

    @torch.inference_mode()
    def execute(self, work: DraftWork | ForwardWork) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        """Runs the work; beside the outcome, what each forward pass did, as the torch engine counts it.

        Raises TypeError for a `ForwardWork`, ValueError for work that says too little or asks for what a graph does not
        show (early exit, importance), CacheHoleError for work that begins behind the end of a cache.
        """
        if isinstance(work, ForwardWork):
            raise TypeError("a device's model on onnxruntime runs whole: it drafts, and has no spans of layers to run")
        if work.early_exit is not None or IMPORTANCE in work.requested_scores:
            what = "early exit" if work.early_exit is not None else "importance"
            raise ValueError(f"session {work.session!r} asks for {what}, which a graph of onnxruntime does not show")
        slot = self.cache.open(work.session, work.start)
        if work.branches:
            return self._draft_branches(
                DraftBuilder(replace(work, stop_rule=DraftStopRule(1)), self.tensor_store, self._scorers), slot
            )
        chunk = DraftBuilder(work, self.tensor_store, self._scorers)
        loads = self._draft_tokens(chunk, slot) if work.stop_rule.max_tokens else self._fill_cache(work, slot)
        return chunk.build(slot.length, None), loads

    def drop(self, session: str, first: int | None) -> None:
        """Frees the drafter's cache, and what was drawn from."""
        if first is None:
            self.cache.drop(session)
        self.tensor_store.discard_owner(f"odds/{session}")

    def _fill_cache(self, work: DraftWork, cache: OnnxSequenceCache) -> tuple[ForwardLoad, ...]:
        if not work.input_tokens:
            return ()
        did = self._load(cache, len(work.input_tokens), 0)
        cache.update(self._session.run(work.input_tokens, (), cache.keys_values()).present)
        return (did,)

    def _draft_tokens(self, builder: DraftBuilder, cache: OnnxSequenceCache) -> tuple[ForwardLoad, ...]:
        work, feed, loads = builder.work, builder.work.input_tokens, list[ForwardLoad]()
        if not feed:
            raise ValueError(
                f"session {work.session!r} asks for {work.stop_rule.max_tokens} tokens with nothing to feed; a model needs a row"
            )
        while feed:
            loads.append(self._load(cache, len(feed), 1))
            ran = self._session.run(feed, (len(feed) - 1,), cache.keys_values())
            cache.update(ran.present)
            more = (
                builder.add_token(self._step_output(ran), cache.length)
                and len(builder.tokens) < work.stop_rule.max_tokens
            )
            feed = (builder.tokens[-1],) if more else ()
        return tuple(loads)

    def _draft_branches(
        self, builder: DraftBuilder, cache: OnnxSequenceCache
    ) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        """One token after each branch, which leave the cache as it was. They run one by one, and are counted as the
        one pass that a tree of them takes: what the named chip is charged is not what this runtime lacks.
        """
        work, past = builder.work, cache.keys_values()
        if not all(work.branches):
            raise ValueError(f"session {work.session!r} asks for a branch without tokens; a model needs a row")
        for branch in work.branches:
            ran = self._session.run(branch, (len(branch) - 1,), past)
            builder.add_token(self._step_output(ran), cache.length + len(branch))
        done = self._load(cache, sum(map(len, work.branches)), len(work.branches))
        return builder.build(cache.length, None), (done,)

    def _step_output(self, output: OnnxOutput) -> StepOutput:
        told = (
            {ROUTE: sigmoid(float(output.router_logits[0]))}
            if self._graph_has_router and output.router_logits is not None
            else {}
        )
        logits = torch.from_numpy(output.logits)[:, : self._vocab_size]
        return StepOutput(logits, torch.from_numpy(output.hidden_states), 1.0, told)

    def _load(self, cache: OnnxSequenceCache, num_tokens: int, head_rows: int) -> ForwardLoad:
        return batch_load(self.header.layers, [(cache.length, num_tokens)], float(head_rows))
