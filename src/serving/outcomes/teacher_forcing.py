"""Teacher forcing: the next tokens of a model at each position of a given text; and the wrong guesses on which a policy
drafted ahead.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from serving.core.draft_tree import first_path
from serving.core.importance import NUM_PLANES
from serving.core.scores import LOGIT_SCORES, NO_SCORERS, Scorers
from serving.core.stop_strings import no_token_text
from serving.engines.torch.attention import ImportanceCollector
from serving.engines.torch.draft import EarlyExitDecoder, run_all_layers
from serving.engines.torch.draft_heads import MedusaProposer
from serving.engines.torch.draft_pool import DraftPool, DraftRun
from serving.engines.torch.model import DecomposedModel
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import KVCacheManager, SequenceCache
from serving.engines.torch.tensor_store import TensorStore
from serving.engines.torch.tree_draft import TreeBuilder, grow_trees
from serving.hardware.executor import Engine
from serving.hardware.latency import ForwardLoad
from serving.messages import DraftOutcome, DraftStopRule, DraftWork, EarlyExitRule, Outcome, Work, drafts_of
from serving.outcomes.lookup import TraceLookup
from serving.outcomes.trace import RecordedSession

MAX_POSITIONS, MAX_CACHED_TOKENS = 16, 16_384
"""How many positions of a text are drafted from at once, and the tokens in their caches."""


class GrownTree(NamedTuple):
    """The drafter's tree at one position, and how many nodes it runs for each level after the first."""

    drafted: DraftOutcome
    levels: tuple[int, ...]


class Continuation(NamedTuple):
    """The drafter's continuation from one position."""

    drafted: DraftOutcome
    exit_layers: list[int]
    """The exit layer of each token."""
    attention: list[list[float]]
    """By plane (all layers, the last one): the attention of the row that wrote the first token to itself, then of each
    token i that was fed back to 0..i.
    """


class TeacherForcedModel:
    """One model under teacher forcing.

    Args:
        model: the model.
        vocabulary: the number of rows of its head that are real tokens.
        exit_rule: its rule of early exit when it drafts.
        scorers: trained scores of its drafts.
    """

    def __init__(
        self,
        model: DecomposedModel,
        vocabulary: int,
        exit_rule: EarlyExitRule | None = None,
        scorers: Scorers = NO_SCORERS,
    ) -> None:
        self._model, self._runner, self._tensor_store, self._scorers = (
            model,
            ModelRunner(model, vocabulary),
            TensorStore(0),
            scorers,
        )
        self._num_layers, self._exit_rule, self._reading = (
            len(model.layers),
            exit_rule,
            EarlyExitDecoder(self._runner, exit_rule),
        )

    @torch.inference_mode()
    def greedy_tokens(self, token_ids: Sequence[int], first: int, max_tokens: int = 256) -> list[int]:
        """The greedy token after token_ids[:p] for p = first..len(token_ids); at most `max_tokens` tokens per pass."""
        cache, found = SequenceCache(self._model, 0, self._num_layers), []
        for at in range(0, len(token_ids), max_tokens):
            part = token_ids[at : at + max_tokens]
            hidden = self._runner.run(self._runner.embed(part), [RunnerInput(cache, len(part))], 0, self._num_layers)
            if at + len(part) >= first:
                hidden = hidden[max(0, first - 1 - at) :]
                found += self._runner.logits(hidden).argmax(-1).tolist()
        return found

    @torch.inference_mode()
    def hidden_and_logits(self, token_ids: Sequence[int], first: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The head's inputs after token_ids[:p] for p = first..len(token_ids), and its logits."""
        cache = SequenceCache(self._model, 0, self._num_layers)
        hidden = self._runner.run(
            self._runner.embed(token_ids), [RunnerInput(cache, len(token_ids))], 0, self._num_layers
        )
        normed = self._runner.apply_norm(hidden[first - 1 :])
        return normed, self._runner.apply_lm_head(normed)

    @torch.inference_mode()
    def proposals(self, token_ids: Sequence[int], first: int, proposer: MedusaProposer) -> list[tuple[int, ...]]:
        """The heads' tree at each of these positions."""
        return [proposer.propose(row).tokens for row in self.hidden_and_logits(token_ids, first)[0]]

    @torch.inference_mode()
    def continuations(
        self, token_ids: Sequence[int], first: int, max_draft_len: int, stop_tokens: tuple[int, ...]
    ) -> list[Continuation]:
        """The greedy continuation of token_ids[:p], `max_draft_len` tokens long, for p = first..len(token_ids)."""
        rule, probes = DraftStopRule(max_draft_len), (*LOGIT_SCORES, *self._scorers)
        found = list[Continuation]()
        for positions, caches in self._windows(token_ids, first):
            pool = DraftPool(self._runner, caches, self._tensor_store, frozenset(), self._scorers, no_token_text)
            drafts = list[tuple[DraftRun, ImportanceCollector]]()
            for p in positions:
                feed = (token_ids[p - 1],)
                run = pool.begin(DraftWork(str(p), p - 1, feed, rule, stop_tokens, probes, early_exit=self._exit_rule))
                assert run  # neither branches nor a tree
                run.importance = seen = self._collector()
                drafts.append((run, seen))
            found += [self._continuation(run.finish()[0], seen) for run, seen in drafts]
        return found

    def _windows(self, token_ids: Sequence[int], first: int) -> Iterator[tuple[range, KVCacheManager]]:
        """The positions p = first..len(token_ids), some at a time, and the cache of token_ids[:p - 1] as session p."""
        caches, layers = KVCacheManager(self._model), self._num_layers
        text = caches.open("text", None, layers, 0)
        size = max(1, min(MAX_POSITIONS, MAX_CACHED_TOKENS // len(token_ids)))
        for at in range(first, len(token_ids) + 1, size):
            positions = range(at, min(at + size, len(token_ids) + 1))
            if missing := token_ids[text.length : positions[-1] - 1]:
                run_all_layers(self._runner, [RunnerInput(text, len(missing))], missing)
            for p in positions:
                cache = caches.open(str(p), None, layers, 0)
                if p > 1:
                    cache.copy_from(text, p - 1, "text")
            yield positions, caches
            for p in positions:
                caches.drop(str(p), None)

    @torch.inference_mode()
    def trees(
        self,
        token_ids: Sequence[int],
        first: int,
        rule: DraftStopRule,
        stop_tokens: tuple[int, ...],
        scorers: Scorers,
        ahead: bool = False,
    ) -> list[tuple[GrownTree, ...]]:
        """The tree that grows by `rule` after token_ids[:p], for p = first..len(token_ids); with `ahead` also the one
        that grows behind its first path and the model's own next token.
        """
        found = list[tuple[GrownTree, ...]]()
        for positions, caches in self._windows(token_ids, first):
            works = [DraftWork(str(p), p - 1, (token_ids[p - 1],), rule, stop_tokens) for p in positions]
            own = [caches.open(work.session, None, self._num_layers, work.start) for work in works]
            trees = self._trees(works, own, scorers)
            if not ahead:
                found += [(tree,) for tree in trees]
                continue
            for work, tree, cache in zip(works, trees, own, strict=True):
                found.append((tree, *self._trees([self._behind(work, tree, cache)], [cache], scorers)))
        return found

    def _trees(self, works: Sequence[DraftWork], caches: Sequence[SequenceCache], scorers: Scorers) -> list[GrownTree]:
        """The trees of these works, in one forward for each level; the caches keep the input tokens alone."""
        trees = [TreeBuilder(work, self._tensor_store, scorers, work.start + work.num_inputs) for work in works]
        drafted, _ = grow_trees(list(zip(trees, caches, strict=True)), self._runner)
        return [GrownTree(each, tuple(tree.widths[1:])) for each, tree in zip(drafted, trees, strict=True)]

    def _behind(self, work: DraftWork, tree: GrownTree, cache: SequenceCache) -> DraftWork:
        """The work that grows the next tree."""
        drafts = tree.drafted.tokens
        path = tuple(drafts[node] for node in first_path(tree.drafted.parents, len(drafts)))
        branch = (*path, self._next_token(path, cache))
        return replace(work, start=cache.length, input_tokens=(), branches=(branch,))

    def _next_token(self, path: Sequence[int], cache: SequenceCache) -> int:
        """The model's greedy token after the cached text and a path, which is not kept."""
        before = cache.length
        hidden = self._runner.run(self._runner.embed(path), [RunnerInput(cache, len(path))], 0, self._num_layers)
        cache.truncate(before, "recorded")
        return int(self._runner.logits(hidden[-1:]).argmax())

    def _collector(self) -> ImportanceCollector:
        return self._reading.importance_collector(frozenset(range(self._num_layers)))

    def _continuation(self, drafted: DraftOutcome, seen: ImportanceCollector) -> Continuation:
        depths = [round(share * self._num_layers) for share in drafted.exit_depths or (1.0,) * len(drafted.tokens)]
        return Continuation(drafted, depths, [_attention(seen.passes, plane) for plane in range(NUM_PLANES)])


def _attention(passes: Sequence[torch.Tensor], plane: int) -> list[float]:
    found: list[float] = [float(passes[0][plane, -1, -1])]
    for i, seen in enumerate(passes[1:]):
        own: list[float] = seen[plane, -1, -(i + 1) :].tolist()
        found += [0.0] * (i + 1 - len(own)) + own  # a sliding window shows fewer columns
    return found


LookaheadBranch = tuple[int, int, int]
"""(base, length, token), see `RecordedSession.lookahead_branches`."""


class LookaheadRecorder:
    """A drafter's engine that records, by session, the texts after which it drafted ahead."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cached: dict[str, list[int]] = defaultdict(list)
        self.lookahead_texts: dict[str, list[tuple[int, ...]]] = defaultdict(list)

    def execute(self, work: Work) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        outcome, loads = self._engine.execute(work)
        for draft, found in drafts_of(work, outcome):
            cached = self._cached[draft.session]
            del cached[draft.start :]
            self.lookahead_texts[draft.session] += [(*cached, *branch) for branch in draft.branches]
            cached += () if draft.branches else (*draft.input_tokens, *found.tokens)
        return outcome, loads

    def drop(self, session: str, first: int | None) -> None:
        self._engine.drop(session, first)

    def move(self, session: str, to: str) -> None:
        self._cached[to] = self._cached.pop(session, [])
        self._engine.move(session, to)

    def copy(self, session: str, to: str, length: int) -> None:
        self._cached[to] = self._cached[session][:length]
        self._engine.copy(session, to, length)


def lookahead_branches(
    lookup: TraceLookup, session: RecordedSession, texts: Sequence[tuple[int, ...]]
) -> dict[LookaheadBranch, tuple[int, ...]]:
    """Where these texts diverge from the record of their session, and each text up to the diverging token."""
    found: dict[LookaheadBranch, tuple[int, ...]] = {}
    for text in texts:
        position, off = lookup.find_divergence(session, (0, 0), text)
        if off is not None:
            found.setdefault((*position, text[off]), text[: off + 1])
    return found
