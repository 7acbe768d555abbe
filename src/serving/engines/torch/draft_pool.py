"""Drafts of several sessions that are written at the same time: a forward of the draft model adds a token to each."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from serving.core.importance import importance_scores
from serving.core.scores import Scorers
from serving.core.stop_strings import TokenText
from serving.engines.torch.attention import ImportanceCollector
from serving.engines.torch.draft import DraftBuilder, StepOutput, read_off, run_all_layers
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
    inputs: TokenIds
    """Of the next forward; empty: the draft is done."""
    loads: list[ForwardLoad] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return not self.inputs

    @property
    def next_load(self) -> ForwardLoad:
        """The load of the next forward, as if the session were alone."""
        return batch_load(self.pool.num_layers, [(self.cache.length, len(self.inputs))], 1.0)

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

    def add_token(self, step: StepOutput) -> None:
        if self.importance:
            self.importance.end_pass()
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

    @property
    def num_layers(self) -> int:
        return len(self._runner.model.layers)

    def begin(self, work: DraftWork) -> DraftRun | None:
        """The draft, of which no token is written yet; None for work that is no plain draft.

        Raises ValueError for a second draft of a session, and for an unknown score.
        """
        stop = work.stop_rule
        if work.early_exit or work.branches or stop.tree or not (stop.max_tokens and work.input_tokens):
            return None
        if any(run.work.session == work.session for run in self._runs):
            raise ValueError(
                f"session {work.session!r} has begun a draft, and its cache can only grow by one at a time"
            )
        builder = DraftBuilder(work, self._tensor_store, self._scorers, self._token_text)
        wanted = importance_scores(work.requested_scores)
        importance = ImportanceCollector(self._importance_layers) if wanted else None
        cache = self._caches.open(work.session, None, self.num_layers, work.start)
        self._runs.append(DraftRun(work, self, cache, builder, importance, work.input_tokens))
        return self._runs[-1]

    @torch.inference_mode()
    def step(self) -> None:
        """One forward, of all drafts that have begun and are not done."""
        runs = self._runs
        for run in runs:
            run.observe()
            run.loads.append(run.next_load)
        for run, step in zip(runs, self._forward(runs), strict=True):
            run.add_token(step)
        self._runs = [run for run in runs if not run.done]

    def _forward(self, runs: Sequence[DraftRun]) -> list[StepOutput]:
        inputs = [RunnerInput(run.cache, len(run.inputs), importance=run.importance) for run in runs]
        hidden = run_all_layers(self._runner, inputs, [token for run in runs for token in run.inputs])
        last = torch.tensor([entry.num_tokens for entry in inputs], device=hidden.device).cumsum(0) - 1
        return read_off(hidden[last], self._runner)
