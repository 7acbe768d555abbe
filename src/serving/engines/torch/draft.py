"""Draft work: one session's continuation on the small model, token by token, with the scores that stop rules read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from serving.core.keyed_random import key, uniform
from serving.core.scores import IMPORTANCE, LOGIT_SCORES, NO_SCORERS, Scorers
from serving.engines.torch.attention import ImportanceCollector
from serving.engines.torch.early_exit_pass import EarlyExitPass
from serving.engines.torch.model_runner import ModelRunner
from serving.engines.torch.sampling import (
    LogitStats,
    check_scores,
    compute_logit_stats,
    distribution,
    encode_probs,
    expand_probs,
    required_scores,
    sample_token,
    support_size,
)
from serving.engines.torch.sequence_cache import SequenceCache
from serving.engines.torch.tensor_store import TensorStore
from serving.hardware.exit_depths import with_head_loads
from serving.hardware.latency import ForwardLoad
from serving.messages import DraftOutcome, DraftStopRule, DraftWork, EarlyExitRule, TensorRef


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a token is written from."""

    logits: torch.Tensor
    """(1, vocabulary)"""
    hidden_state: torch.Tensor
    """(1, hidden) behind the model's last norm: what its head looked at, `hidden_states[-1]` of `transformers`."""
    exit_depth: float
    """The share of the layers that had run."""
    given_scores: Mapping[str, float] = field(default_factory=dict)
    """Trained scores that came along; the others are asked of their scorers."""


class DraftBuilder:
    """What one `DraftWork` has written so far."""

    def __init__(self, work: DraftWork, tensor_store: TensorStore, scorers: Scorers = NO_SCORERS) -> None:
        self.work, self._tensor_store, self._scorers = work, tensor_store, scorers
        self.requested_scores = tuple(name for name in work.requested_scores if name != IMPORTANCE)
        self._score_names = tuple(
            dict.fromkeys((*self.requested_scores, *((work.stop_rule.score,) if work.stop_rule.score else ())))
        )
        check_scores(self._score_names, scorers)
        self._logit_scores = required_scores(self._score_names, scorers)
        self.tokens: list[int] = []
        self.top_candidates: list[tuple[int, ...]] = []
        self.scores: dict[str, list[float]] = {name: [] for name in self.requested_scores}
        self.draft_probs: list[TensorRef] = []
        self.probs_support: list[int] = []
        self.exit_depths: list[float] = []
        self.stopped = False

    def add_token(self, step: StepOutput, position: int) -> bool:
        """Chooses the token at `position`; is there more to write?"""
        stop, found = self.work.stop_rule, compute_logit_stats(step.logits, self._logit_scores)
        scores = self._token_scores(found, step)
        self.stopped = bool(stop.score) and scores[stop.score] < stop.threshold
        if self.stopped and not stop.keep_last and len(self.tokens) >= stop.min_tokens:
            return False
        token = self._choose_token(step.logits, found.tokens[0], position)
        self.tokens.append(token)
        self.top_candidates.append(tuple(found.top_candidates[0]))
        if self.work.early_exit:
            self.exit_depths.append(step.exit_depth)
        for name, values in self.scores.items():
            values.append(scores[name])
        return not self.stopped and token not in self.work.stop_tokens

    def _token_scores(self, stats: LogitStats, step: StepOutput) -> dict[str, float]:
        scores = {name: values[0] for name, values in stats.scores.items()}
        for name in self._score_names:
            if name in step.given_scores:
                scores[name] = step.given_scores[name]
            elif scorer := self._scorers.get(name):
                of_hidden = scorer.feature_kind == "hidden"
                features = (
                    step.hidden_state[0].float().cpu().numpy() if of_hidden else [scores[e] for e in LOGIT_SCORES]
                )
                scores[name] = scorer.probability(features)
        return scores

    def _choose_token(self, logits: torch.Tensor, argmax_token: int, position: int) -> int:
        sampling, whole = self.work.sampling, self.work.full_draft_probs
        if sampling is None and not whole:
            return argmax_token
        odds = distribution(logits[0], sampling) if sampling else logits[0].softmax(-1)
        sent = encode_probs(odds, whole).cpu()
        self.draft_probs.append(self._tensor_store.put(sent, f"odds/{self.work.session}", sent.nbytes))
        cut = sampling is not None and (sampling.top_k > 0 or sampling.top_p < 1)
        self.probs_support.append(
            support_size(sent) if cut else 0
        )  # uncut, it grows with the vocabulary of the timed model
        if sampling is None:
            return argmax_token
        return sample_token(
            expand_probs(sent, logits.shape[-1]), uniform(key(sampling.seed, self.work.session), position, "draft")
        )

    def build(self, cached_len: int, importance: tuple[float, ...] | None) -> DraftOutcome:
        scores = {name: tuple(values) for name, values in self.scores.items()}
        if importance is not None:
            scores[IMPORTANCE] = importance
        return DraftOutcome(
            tuple(self.tokens), scores, tuple(self.top_candidates), self.stopped, cached_len, tuple(self.draft_probs), tuple(self.probs_support),
            tuple(self.exit_depths),
        )  # fmt: skip


class EarlyExitDecoder:
    """Runs rows down until their tokens can be read off: after the last layer, or at an exit that is sure enough."""

    def __init__(self, runner: ModelRunner, rule: EarlyExitRule | None) -> None:
        self._runner, self._rule, self._num_layers = runner, rule, len(runner.model.layers)
        self.exit_layers = rule.check_layers(self._num_layers) if rule else ()
        if rule:
            check_scores((rule.score,))

    def decode(
        self, exit_pass: EarlyExitPass, indices: Sequence[int]
    ) -> tuple[list[StepOutput], tuple[ForwardLoad, ...]]:
        """What the token behind each row is written from; what all of it did.

        The pass goes on until the last of the rows is read off; each check asks the head about all of them.
        """
        found: dict[int, StepOutput] = {}
        vain = -1
        for layer in (*self.exit_layers, self._num_layers):
            vain += 1
            normed = self._runner.apply_norm(exit_pass.run_to(layer)[list(indices)])
            logits = self._runner.apply_lm_head(normed)
            sure = self._confident(logits) if layer < self._num_layers else [True] * len(indices)
            for i in range(len(indices)):
                if sure[i] and i not in found:
                    found[i] = StepOutput(logits[i : i + 1], normed[i : i + 1], layer / self._num_layers)
            if len(found) == len(indices):
                break
        return [found[i] for i in range(len(indices))], with_head_loads(exit_pass.finish(), len(indices), vain)

    def importance_collector(self, importance_layers: frozenset[int]) -> ImportanceCollector:
        """Of the probed layers that always run, so that it depends on the text and not on who left where."""
        always = range(self.exit_layers[0] if self.exit_layers else self._num_layers)
        return ImportanceCollector(importance_layers & frozenset(always) or frozenset(always[-1:]))

    def _confident(self, logits: torch.Tensor) -> list[bool]:
        rule = self._rule
        return (
            [value > rule.threshold for value in compute_logit_stats(logits, (rule.score,)).scores[rule.score]]
            if rule
            else []
        )


def generate(
    work: DraftWork,
    runner: ModelRunner,
    cache: SequenceCache,
    tensor_store: TensorStore,
    importance_layers: frozenset[int],
    scorers: Scorers,
) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
    """Feeds what the cache lacks, then writes up to the stop rule; the last token written is not fed back.

    Scores and tops describe the model's own distribution, before temperature, top-k and top-p. Branches know no stop
    rule and no importance, which is seen from later rows. With exits, importance is that of the layers that always run.

    Raises ValueError for an unknown score, and when there is nothing to feed.
    """
    reading = EarlyExitDecoder(runner, work.early_exit)
    if work.branches:
        return _draft_branches(
            DraftBuilder(replace(work, stop_rule=DraftStopRule(1)), tensor_store, scorers), reading, runner, cache
        )
    importance = reading.importance_collector(importance_layers) if IMPORTANCE in work.requested_scores else None
    chunk = DraftBuilder(work, tensor_store, scorers)
    if not work.stop_rule.max_tokens:
        loads = _fill_cache(work, runner, cache, importance if work.num_adopted_drafts else None)
    else:
        loads = draft_tokens(chunk, reading, runner, cache, importance)
    return chunk.build(
        cache.length, importance.draft_importance(work.num_adopted_drafts, len(chunk.tokens)) if importance else None
    ), loads


def _fill_cache(
    work: DraftWork, runner: ModelRunner, cache: SequenceCache, importance: ImportanceCollector | None
) -> tuple[ForwardLoad, ...]:
    """Nothing is written: the cache is filled, and the importance of drafts that were written before is seen."""
    if not work.input_tokens:
        return ()
    if importance:
        importance.observe_last(max(1, work.num_adopted_drafts - 1))
    descent = EarlyExitPass(runner, cache, work.input_tokens, importance=importance)
    descent.run_to(len(runner.model.layers))
    return descent.finish()


def draft_tokens(
    builder: DraftBuilder,
    decoder: EarlyExitDecoder,
    runner: ModelRunner,
    cache: SequenceCache,
    importance: ImportanceCollector | None,
) -> tuple[ForwardLoad, ...]:
    """Writes the chunk, token by token; what the passes did. Raises ValueError when there is nothing to feed."""
    work, feed, loads = builder.work, builder.work.input_tokens, list[ForwardLoad]()
    if not feed:
        raise ValueError(
            f"session {work.session!r} asks for {work.stop_rule.max_tokens} tokens with nothing to feed; a model needs a row"
        )
    while feed:
        if importance:
            importance.observe_last(1 if loads else max(1, work.num_adopted_drafts))
        (seen,), done = decoder.decode(EarlyExitPass(runner, cache, feed, importance=importance), [-1])
        loads += done
        more = builder.add_token(seen, cache.length) and len(builder.tokens) < work.stop_rule.max_tokens
        feed = (builder.tokens[-1],) if more else ()
    return tuple(loads)


def _draft_branches(
    builder: DraftBuilder, decoder: EarlyExitDecoder, runner: ModelRunner, cache: SequenceCache
) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
    """One token after each branch, all branches in one pass: a forest whose roots follow the cache."""
    work, start = builder.work, cache.length
    if not all(work.branches):
        raise ValueError(f"session {work.session!r} asks for a branch without tokens; a model needs a row")
    tokens = [token for branch in work.branches for token in branch]
    parents, ends = _chain_parents([len(branch) for branch in work.branches])
    found, loads = decoder.decode(EarlyExitPass(runner, cache, tokens, parents), ends)
    cache.truncate(start, work.session)
    for seen, branch in zip(found, work.branches, strict=True):
        builder.add_token(seen, start + len(branch))
    return builder.build(start, None), loads


def _chain_parents(lengths: list[int]) -> tuple[tuple[int, ...], list[int]]:
    """Parents of rows that form chains laid end to end, and the last row of each chain."""
    parents: list[int] = []
    ends: list[int] = []
    for length in lengths:
        at = len(parents)
        parents += [-1, *range(at, at + length - 1)]
        ends.append(at + length - 1)
    return tuple(parents), ends
