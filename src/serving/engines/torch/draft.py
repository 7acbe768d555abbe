"""Draft work: writes one session's continuation with the small model, and scores each token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from serving.core.importance import draft_importance, importance_plane, importance_scores
from serving.core.keyed_random import key, uniform
from serving.core.scores import IMPORTANCE_SCORES, LOGIT_SCORES, NO_SCORERS, Scorers
from serving.core.stop_strings import TokenText, advance, no_token_text
from serving.engines.torch.attention import ImportanceCollector
from serving.engines.torch.early_exit_pass import EarlyExitPass, run_together
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
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
    """The model's output for one token."""

    logits: torch.Tensor
    """(1, vocabulary)"""
    hidden_state: torch.Tensor
    """(1, hidden) after the last norm: the LM head's input, `hidden_states[-1]` of `transformers`."""
    exit_depth: float
    """The share of the layers that ran."""
    given_scores: Mapping[str, float] = field(default_factory=dict)
    """Trained scores that the model's graph computed; scorers compute the others."""


def run_all_layers(runner: ModelRunner, inputs: Sequence[RunnerInput], tokens: Sequence[int]) -> torch.Tensor:
    """The hidden states of the inputs' `tokens`, laid end to end, behind the last layer: (tokens, hidden)."""
    num_layers = len(runner.model.layers)
    hidden = runner.run(runner.embed(tokens), inputs, 0, num_layers)
    for entry in inputs:
        if entry.cache.exit_depths is not None:
            entry.cache.exit_depths.append(entry.num_tokens, num_layers)
    return hidden


def read_off(hidden: torch.Tensor, runner: ModelRunner) -> list[StepOutput]:
    """The model's outputs for hidden states of shape (tokens, hidden) behind the last layer."""
    normed = runner.apply_norm(hidden)
    logits = runner.apply_lm_head(normed)
    return [StepOutput(logits[i : i + 1], normed[i : i + 1], 1.0) for i in range(len(hidden))]


def score_names(work: DraftWork) -> tuple[str, ...]:
    """The scores of each token that a draft needs, without importance."""
    wanted = [name for name in work.requested_scores if name not in IMPORTANCE_SCORES]
    return tuple(dict.fromkeys((*wanted, *((work.stop_rule.score,) if work.stop_rule.score else ()))))


def token_scores(work: DraftWork, step: StepOutput, scorers: Scorers) -> tuple[LogitStats, dict[str, float]]:
    """Statistics of the output for one token, and the scores that the work needs."""
    names = score_names(work)
    stats = compute_logit_stats(step.logits, required_scores(names, scorers))
    scores = {name: values[0] for name, values in stats.scores.items()}
    for name in names:
        if name in step.given_scores:
            scores[name] = step.given_scores[name]
        elif scorer := scorers.get(name):
            of_hidden = scorer.feature_kind == "hidden"
            features = step.hidden_state[0].float().cpu().numpy() if of_hidden else [scores[e] for e in LOGIT_SCORES]
            scores[name] = scorer.probability(features)
    return stats, scores


class DraftBuilder:
    """Collects the tokens, scores and distributions of one `DraftWork`."""

    def __init__(
        self,
        work: DraftWork,
        tensor_store: TensorStore,
        scorers: Scorers = NO_SCORERS,
        token_text: TokenText = no_token_text,
    ) -> None:
        self.work, self._tensor_store, self._scorers, self._token_text = work, tensor_store, scorers, token_text
        self.requested_scores = tuple(name for name in work.requested_scores if name not in IMPORTANCE_SCORES)
        check_scores(score_names(work), scorers)
        self.tokens: list[int] = []
        self.top_candidates: list[tuple[int, ...]] = []
        self.scores: dict[str, list[float]] = {name: [] for name in self.requested_scores}
        self.draft_probs: list[TensorRef] = []
        self.probs_support: list[int] = []
        self.exit_depths: list[float] = []
        self.stopped, self._level = False, 1.0

    def add_token(self, step: StepOutput, position: int) -> bool:
        """Chooses the token at `position`. True if the draft goes on."""
        stop, (stats, scores) = self.work.stop_rule, token_scores(self.work, step, self._scorers)
        if stop.score:
            self._level = stop.level(self._level, scores[stop.score])
            self.stopped = self._level < stop.threshold
        if self.stopped and not stop.keep_last and len(self.tokens) >= stop.min_tokens:
            return False
        token = self._choose_token(step.logits, stats.tokens[0], position)
        self.tokens.append(token)
        self.top_candidates.append(tuple(stats.top_candidates[0]))
        if self.work.early_exit:
            self.exit_depths.append(step.exit_depth)
        for name, values in self.scores.items():
            values.append(scores[name])
        return not (self.stopped or token in self.work.stop_tokens or self._ends_stop_string())

    def _ends_stop_string(self) -> bool:
        stop = self.work.stop_text
        return stop is not None and advance(stop, self.tokens, self._token_text)[1] is not None

    def _choose_token(self, logits: torch.Tensor, argmax_token: int, position: int) -> int:
        sampling, full = self.work.sampling, self.work.full_draft_probs
        if sampling is None and not full:
            return argmax_token
        probs = distribution(logits[0], sampling) if sampling else logits[0].softmax(-1)
        encoded = encode_probs(probs, full).cpu()
        self.draft_probs.append(self._tensor_store.put(encoded, f"odds/{self.work.session}", encoded.nbytes))
        truncated = sampling is not None and (sampling.top_k > 0 or sampling.top_p < 1)
        # The support of a distribution that is not truncated would depend on the vocabulary of this model.
        self.probs_support.append(support_size(encoded) if truncated else 0)
        if sampling is None:
            return argmax_token
        return sample_token(
            expand_probs(encoded, logits.shape[-1]), uniform(key(sampling.seed, self.work.session), position, "draft")
        )

    def build(self, cached_len: int, importance: ImportanceCollector | None) -> DraftOutcome:
        scores = {name: tuple(values) for name, values in self.scores.items()}
        if importance is not None:
            adopted, drafted = self.work.num_adopted_drafts, len(self.tokens)
            for name in importance_scores(self.work.requested_scores):
                rows = importance.draft_attention(adopted, drafted, importance_plane(name))
                scores[name] = draft_importance(rows, adopted + drafted, name)
        return DraftOutcome(
            tuple(self.tokens), scores, tuple(self.top_candidates), self.stopped, cached_len, tuple(self.draft_probs),
            tuple(self.probs_support), tuple(self.exit_depths),
        )  # fmt: skip


@dataclass
class LeavingTokens:
    """Tokens of one pass that are read off after the first of `layers` at which all of them are confident enough.

    The last of `layers` is the last of the model. Each check runs the head over all of them.
    """

    exit_pass: EarlyExitPass
    indices: Sequence[int]
    rule: EarlyExitRule | None
    layers: tuple[int, ...]
    failed_checks: int = -1
    found: dict[int, StepOutput] = field(default_factory=dict)
    loads: tuple[ForwardLoad, ...] = ()
    """Of the whole pass, once it has ended."""

    @property
    def left(self) -> bool:
        return bool(self.loads)

    @property
    def outputs(self) -> list[StepOutput]:
        return [self.found[i] for i in range(len(self.indices))]

    def hidden(self) -> torch.Tensor:
        return self.exit_pass.hidden[list(self.indices)]

    def check(self, logits: torch.Tensor, normed: torch.Tensor, layer: int) -> None:
        """Reads off what is confident behind `layer`, and ends the pass with the last of them."""
        self.failed_checks += 1
        confident = self._confident(logits) if layer < self.layers[-1] else [True] * len(logits)
        for i, enough in enumerate(confident):
            if enough and i not in self.found:
                self.found[i] = StepOutput(logits[i : i + 1], normed[i : i + 1], layer / self.layers[-1])
        if len(self.found) == len(logits):
            self.loads = with_head_loads(self.exit_pass.finish(), len(logits), self.failed_checks)

    def _confident(self, logits: torch.Tensor) -> list[bool]:
        assert self.rule
        scores = compute_logit_stats(logits, (self.rule.score,)).scores[self.rule.score]
        return [value > self.rule.threshold for value in scores]


def decode_together(runner: ModelRunner, waiting: Sequence[LeavingTokens]) -> None:
    """Runs their passes through the layers until all tokens have left."""
    for layer in sorted({layer for each in waiting for layer in each.layers}):
        waiting = [each for each in waiting if not each.left]
        run_together([each.exit_pass for each in waiting], layer)
        if asked := [each for each in waiting if layer in each.layers]:
            normed = runner.apply_norm(torch.cat([each.hidden() for each in asked]))
            sizes = [len(each.indices) for each in asked]
            logits = runner.apply_lm_head(normed).split_with_sizes(sizes)
            for each, own, behind in zip(asked, logits, normed.split_with_sizes(sizes), strict=True):
                each.check(own, behind, layer)


class EarlyExitDecoder:
    """Runs tokens through the layers until the next token is chosen: at the last layer, or at a confident exit."""

    def __init__(self, runner: ModelRunner, rule: EarlyExitRule | None) -> None:
        self._runner, self._rule, self._num_layers = runner, rule, len(runner.model.layers)
        self.exit_layers = rule.check_layers(self._num_layers) if rule else ()
        if rule:
            check_scores((rule.score,))

    @property
    def first_exit(self) -> int:
        """After how many layers a token may leave."""
        return (*self.exit_layers, self._num_layers)[0]

    def leaving(self, exit_pass: EarlyExitPass, indices: Sequence[int]) -> LeavingTokens:
        return LeavingTokens(exit_pass, indices, self._rule, (*self.exit_layers, self._num_layers))

    def decode(
        self, exit_pass: EarlyExitPass, indices: Sequence[int]
    ) -> tuple[list[StepOutput], tuple[ForwardLoad, ...]]:
        """The output after each token of `indices`, and the loads."""
        leaving = self.leaving(exit_pass, indices)
        decode_together(self._runner, [leaving])
        return leaving.outputs, leaving.loads

    def importance_collector(self, importance_layers: frozenset[int]) -> ImportanceCollector:
        """Uses the importance layers that always run, so that importance does not depend on exits."""
        always = range(self.exit_layers[0] if self.exit_layers else self._num_layers)
        return ImportanceCollector(importance_layers & frozenset(always) or frozenset(always[-1:]))


def generate(
    work: DraftWork,
    runner: ModelRunner,
    cache: SequenceCache,
    tensor_store: TensorStore,
    importance_layers: frozenset[int],
    scorers: Scorers,
    token_text: TokenText = no_token_text,
) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
    """Feeds the input tokens, then drafts up to the stop rule; the last token drafted is not fed back.

    Scores and top candidates describe the model's distribution before temperature, top-k and top-p. Branches have no
    stop rule, and no importance, which needs later tokens.

    Raises ValueError for an unknown score, or without input tokens.
    """
    decoder = EarlyExitDecoder(runner, work.early_exit)
    if work.branches:
        return _draft_branches(
            DraftBuilder(replace(work, stop_rule=DraftStopRule(1)), tensor_store, scorers), decoder, runner, cache
        )
    importance = decoder.importance_collector(importance_layers) if importance_scores(work.requested_scores) else None
    builder = DraftBuilder(work, tensor_store, scorers, token_text)
    if not work.stop_rule.max_tokens:
        loads = _fill_cache(work, runner, cache, importance if work.num_adopted_drafts else None)
    else:
        loads = draft_tokens(builder, decoder, runner, cache, importance)
    return builder.build(cache.length, importance), loads


def _fill_cache(
    work: DraftWork, runner: ModelRunner, cache: SequenceCache, importance: ImportanceCollector | None
) -> tuple[ForwardLoad, ...]:
    """Fills the cache without drafting, and observes the importance of drafts that were written before."""
    if not work.input_tokens:
        return ()
    if importance:
        importance.observe_last(max(1, work.num_adopted_drafts - 1))
    exit_pass = EarlyExitPass(runner, cache, work.input_tokens, importance=importance)
    exit_pass.run_to(len(runner.model.layers))
    return exit_pass.finish()


def draft_tokens(
    builder: DraftBuilder,
    decoder: EarlyExitDecoder,
    runner: ModelRunner,
    cache: SequenceCache,
    importance: ImportanceCollector | None,
) -> tuple[ForwardLoad, ...]:
    """Drafts token by token; returns the loads. Raises ValueError without input tokens."""
    work, feed, loads = builder.work, builder.work.input_tokens, list[ForwardLoad]()
    if not feed:
        raise ValueError(
            f"session {work.session!r} asks for {work.stop_rule.max_tokens} tokens with nothing to feed; a model "
            "needs a token"
        )
    while feed:
        if importance:
            importance.observe_last(1 if loads else max(1, work.num_adopted_drafts))
        (step,), done = decoder.decode(EarlyExitPass(runner, cache, feed, importance=importance), [-1])
        loads += done
        more = builder.add_token(step, cache.length) and len(builder.tokens) < work.stop_rule.max_tokens
        feed = (builder.tokens[-1],) if more else ()
    return tuple(loads)


def _draft_branches(
    builder: DraftBuilder, decoder: EarlyExitDecoder, runner: ModelRunner, cache: SequenceCache
) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
    """One token after each branch, all branches in one pass: trees whose roots follow the cache."""
    work, start = builder.work, cache.length
    if not all(work.branches):
        raise ValueError(f"session {work.session!r} asks for a branch without tokens; a model needs a token")
    tokens = [token for branch in work.branches for token in branch]
    parents, ends = chain_parents([len(branch) for branch in work.branches])
    found, loads = decoder.decode(EarlyExitPass(runner, cache, tokens, parents), ends)
    cache.truncate(start, work.session)
    for step, branch in zip(found, work.branches, strict=True):
        builder.add_token(step, start + len(branch))
    return builder.build(start, None), loads


def chain_parents(lengths: list[int]) -> tuple[tuple[int, ...], list[int]]:
    """Parents of the tokens of chains laid end to end, and the last index of each chain."""
    parents: list[int] = []
    ends: list[int] = []
    for length in lengths:
        at = len(parents)
        parents += [-1, *range(at, at + length - 1)]
        ends.append(at + length - 1)
    return tuple(parents), ends
