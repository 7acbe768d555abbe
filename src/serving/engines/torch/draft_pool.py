"""Drafts of several sessions that are written at the same time: a forward of the draft model adds a token to each."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from serving.core.importance import importance_scores
from serving.core.scores import Scorers
from serving.core.stop_strings import TokenText
from serving.engines.torch.attention import ImportanceCollector
from serving.engines.torch.draft import (
    DraftBuilder,
    EarlyExitDecoder,
    StepOutput,
    decode_together,
    read_off,
    run_all_layers,
)
from serving.engines.torch.early_exit_pass import EarlyExitPass
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import KVCacheManager, SequenceCache
from serving.engines.torch.tensor_store import TensorStore
from serving.hardware.latency import ForwardLoad, batch_load
from serving.messages import DraftOutcome, DraftWork, TokenIds


@dataclass(eq=False)
class DraftRun:
    """A draft that has begun; `hardware.executor.DraftInProgress` says what callers use."""

    work: DraftWork
    pool: "DraftPool"
    cache: SequenceCache
    builder: DraftBuilder
    importance: ImportanceCollector | None
    decoder: EarlyExitDecoder
    inputs: TokenIds
    """Of the next forward; empty: the draft is done."""
    loads: list[ForwardLoad] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return not self.inputs

    @property
    def next_load(self) -> ForwardLoad:
        """The load of the next forward, as if the session were alone, and as if it left at the first exit."""
        return batch_load(self.decoder.first_exit, [(self.cache.length, len(self.inputs))], 1.0)

    def advance(self) -> None:
        self.pool.step()

    def finish(self) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        while not self.done:
            self.pool.step()
        return self.builder.build(self.cache.length, self.importance), tuple(self.loads)

    def observe(self) -> None:
        """Tells the importance which tokens of the next forward are drafts."""
        if self.importance:
            self.importance.observe_last(1 if self.loads else max(1, self.work.num_adopted_drafts))

    def add_token(self, step: StepOutput, loads: Sequence[ForwardLoad]) -> None:
        """The output and the loads of a forward that has run."""
        self.loads += loads
        more = self.builder.add_token(step, self.cache.length)
        more = more and len(self.builder.tokens) < self.work.stop_rule.max_tokens
        self.inputs = (self.builder.tokens[-1],) if more else ()


class DraftPool:
    """The drafts that have begun on one engine. Arguments are those of `draft.generate`."""

    def __init__(
        self,
        runner: ModelRunner,
        caches: KVCacheManager,
        tensor_store: TensorStore,
        importance_layers: frozenset[int],
        scorers: Scorers,
        token_text: TokenText,
    ) -> None:
        self._runner, self._caches, self._tensor_store = runner, caches, tensor_store
        self._importance_layers, self._scorers, self._token_text = importance_layers, scorers, token_text
        self._runs: list[DraftRun] = []

    def begin(self, work: DraftWork) -> DraftRun | None:
        """The draft, of which no token is written yet; None for branches, a tree, and work without tokens or input.

        Raises ValueError for a second draft of a session, and for an unknown score.
        """
        stop = work.stop_rule
        if work.branches or stop.tree or not (stop.max_tokens and work.input_tokens):
            return None
        if any(run.work.session == work.session for run in self._runs):
            raise ValueError(
                f"session {work.session!r} has begun a draft, and its cache can only grow by one at a time"
            )
        builder = DraftBuilder(work, self._tensor_store, self._scorers, self._token_text)
        decoder = EarlyExitDecoder(self._runner, work.early_exit)
        wanted = importance_scores(work.requested_scores)
        importance = decoder.importance_collector(self._importance_layers) if wanted else None
        cache = self._caches.open(work.session, None, len(self._runner.model.layers), work.start)
        self._runs.append(DraftRun(work, self, cache, builder, importance, decoder, work.input_tokens))
        return self._runs[-1]

    def forget(self, session: str) -> None:
        """The session's draft, if one has begun, ends where it is: its cache is about to go."""
        for run in self._runs:
            if run.work.session == session:
                run.inputs = ()
        self._runs = [run for run in self._runs if not run.done]

    @torch.inference_mode()
    def step(self) -> None:
        """One forward, of all drafts that have begun and are not done."""
        for run in self._runs:
            run.observe()
        self._run_whole([run for run in self._runs if run.cache.exit_depths is None and not run.work.early_exit])
        self._run_early_exits([run for run in self._runs if run.cache.exit_depths is not None or run.work.early_exit])
        self._runs = [run for run in self._runs if not run.done]

    def _run_whole(self, runs: Sequence[DraftRun]) -> None:
        if not runs:
            return
        loads = [run.next_load for run in runs]
        inputs = [RunnerInput(run.cache, len(run.inputs), importance=run.importance) for run in runs]
        hidden = run_all_layers(self._runner, inputs, [token for run in runs for token in run.inputs])
        last = torch.tensor([entry.num_tokens for entry in inputs], device=hidden.device).cumsum(0) - 1
        for run, load, step in zip(runs, loads, read_off(hidden[last], self._runner), strict=True):
            if run.importance:
                run.importance.end_pass()
            run.add_token(step, [load])

    def _run_early_exits(self, runs: Sequence[DraftRun]) -> None:
        passes = [EarlyExitPass(self._runner, run.cache, run.inputs, importance=run.importance) for run in runs]
        leaving = [run.decoder.leaving(own, [-1]) for run, own in zip(runs, passes, strict=True)]
        decode_together(self._runner, leaving)
        for run, each in zip(runs, leaving, strict=True):
            (step,) = each.outputs
            run.add_token(step, each.loads)
