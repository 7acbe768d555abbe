"""Draft work that grows trees: a forward of the draft model for each level, over the nodes that get children."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from serving.core.keyed_random import key, uniform
from serving.core.scores import Scorers
from serving.core.tree_growth import ROOT, Candidates, TreeGrowth, kept_parents, pick
from serving.engines.torch.draft import StepOutput, read_off, run_all_layers, score_names, token_scores
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sampling import (
    LogitStats,
    check_scores,
    distribution,
    encode_probs,
    expand_probs,
    sample_token,
    support_size,
)
from serving.engines.torch.sequence_cache import SequenceCache
from serving.engines.torch.tensor_store import TensorStore
from serving.hardware.latency import ForwardLoad, batch_load
from serving.messages import DraftOutcome, DraftWork, TensorRef, TokenIds


@dataclass(frozen=True, slots=True)
class _NodeOutput:
    """What the draft model says at one node that gets children; each child is described by it."""

    top_candidates: tuple[int, ...]
    scores: dict[str, float]
    draft_probs: TensorRef | None
    support: int


@dataclass
class TreeBuilder:
    """Collects the nodes, scores and distributions of one `DraftWork` with a tree."""

    work: DraftWork
    tensor_store: TensorStore
    scorers: Scorers
    first_position: int
    """The position of the tree's first level in the text."""
    growth: TreeGrowth = field(init=False)
    widths: list[int] = field(default_factory=list)
    """How many nodes ran for each level; the first runs the root alone."""
    _outputs: dict[int, _NodeOutput] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_scores(score_names(self.work), self.scorers)
        self.growth = TreeGrowth(self.work.stop_rule, self.work.stop_tokens, self.work.sampling is not None)

    def add_level(self, steps: Sequence[StepOutput]) -> None:
        """The draft model's outputs at the nodes of the frontier."""
        self.widths.append(len(steps))
        stop, candidates, ended = self.work.stop_rule, list[Candidates](), list[bool]()
        for node, step in zip(self.growth.frontier, steps, strict=True):
            stats, scores = token_scores(self.work, step, self.scorers)
            low = bool(stop.score) and scores[stop.score] < stop.threshold
            dropped = low and not stop.keep_last and not (node == ROOT and stop.min_tokens)
            candidates.append([] if dropped else self._candidates(node, step.logits, stats, scores))
            ended.append(low)
        self.growth.extend(candidates, ended)

    def _candidates(self, node: int, logits: torch.Tensor, stats: LogitStats, scores: dict[str, float]) -> Candidates:
        """The children's tokens and probabilities."""
        sampling, full = self.work.sampling, self.work.full_draft_probs
        probs = distribution(logits[0], sampling) if sampling else logits[0].softmax(-1)
        ref, support = self._stored(probs) if sampling or full else (None, 0)
        self._outputs[node] = _NodeOutput(tuple(stats.top_candidates[0]), scores, ref, support)
        count = self.growth.num_children(node)
        if sampling is None:
            values, tokens = probs.topk(min(count, len(probs)))
            return list(zip(tokens.tolist(), values.tolist(), strict=True))
        assert ref is not None
        return self._draws(node, expand_probs(self.tensor_store.get(ref), logits.shape[-1]).double(), count)

    def _stored(self, probs: torch.Tensor) -> tuple[TensorRef, int]:
        encoded = encode_probs(probs, self.work.full_draft_probs).cpu()
        sampling = self.work.sampling
        truncated = sampling is not None and (sampling.top_k > 0 or sampling.top_p < 1)
        ref = self.tensor_store.put(encoded, f"odds/{self.work.session}", encoded.nbytes)
        return ref, support_size(encoded) if truncated else 0

    def _draws(self, node: int, weights: torch.Tensor, count: int) -> Candidates:
        """Tokens drawn without replacement, in the order of the draws."""
        assert self.work.sampling
        stream, found = key(self.work.sampling.seed, self.work.session), list[tuple[int, float]]()
        position, total = self.first_position + len(self.growth.path(node)), float(weights.sum())
        for i in range(min(count, int((weights > 0).sum()))):
            token = sample_token(weights, uniform(stream, position, f"draft {node} {i}"))
            found.append((token, float(weights[token]) / total))
            weights[token] = 0.0
        return found

    def build(self, cached_len: int) -> DraftOutcome:
        kept, growth = self.growth.kept(), self.growth
        before = [self._outputs[growth.parents[node]] for node in kept]
        names = self.work.requested_scores
        return DraftOutcome(
            pick(growth.tokens, kept),
            {name: tuple([output.scores[name] for output in before]) for name in names},
            tuple([output.top_candidates for output in before]),
            False,
            cached_len,
            tuple([output.draft_probs for output in before if output.draft_probs]),
            tuple([output.support for output in before if output.draft_probs]),
            parents=kept_parents(growth.parents, kept),
        )


def grow_trees(
    trees: Sequence[tuple[TreeBuilder, SequenceCache]], runner: ModelRunner
) -> tuple[list[DraftOutcome], tuple[ForwardLoad, ...]]:
    """Feeds each work's input tokens or branch in one forward, then grows the trees, a forward for each level. The
    caches keep the input tokens alone.

    Raises ValueError for a work without any.
    """
    fed = [tree_inputs(builder.work) for builder, _ in trees]
    inputs = [RunnerInput(cache, len(tokens)) for (_, cache), tokens in zip(trees, fed, strict=True)]
    spans = [(cache.length, len(tokens)) for (_, cache), tokens in zip(trees, fed, strict=True)]
    loads = [batch_load(len(runner.model.layers), spans, float(len(trees)))]
    hidden = run_all_layers(runner, inputs, [token for tokens in fed for token in tokens])
    ends = [end - 1 for end in accumulate(map(len, fed))]
    for (builder, _), step in zip(trees, read_off(hidden[ends], runner), strict=True):
        builder.add_level([step])
    loads += grow_levels(trees, runner)
    for builder, cache in trees:
        cache.truncate(builder.work.start + len(builder.work.input_tokens), builder.work.session)
    return [builder.build(cache.length) for builder, cache in trees], tuple(loads)


def tree_inputs(work: DraftWork) -> TokenIds:
    """The tokens from whose last one a tree grows. Raises ValueError without any."""
    tokens = work.branches[0] if work.branches else work.input_tokens
    if not tokens:
        raise ValueError(f"session {work.session!r} asks for a tree with nothing to feed; a model needs a token")
    return tokens


def grow_levels(trees: Sequence[tuple[TreeBuilder, SequenceCache]], runner: ModelRunner) -> Iterator[ForwardLoad]:
    """Grows trees whose first level is there, one forward for each level of all of them; yields the loads."""
    while growing := [(builder, cache) for builder, cache in trees if builder.growth.frontier]:
        widths = [len(builder.growth.frontier) for builder, _ in growing]
        spans = [(cache.length, width) for (_, cache), width in zip(growing, widths, strict=True)]
        yield batch_load(len(runner.model.layers), spans, float(sum(widths)))
        steps = _run_frontiers(growing, runner)
        for (builder, _), width in zip(growing, widths, strict=True):
            builder.add_level([next(steps) for _ in range(width)])


def _run_frontiers(growing: Sequence[tuple[TreeBuilder, SequenceCache]], runner: ModelRunner) -> Iterator[StepOutput]:
    inputs, tokens = list[RunnerInput](), list[int]()
    for builder, cache in growing:
        frontier = builder.growth.frontier
        inputs.append(RunnerInput(cache, len(frontier), builder.growth.run_parents()))
        tokens += [builder.growth.tokens[node] for node in frontier]
    return iter(read_off(run_all_layers(runner, inputs, tokens), runner))
