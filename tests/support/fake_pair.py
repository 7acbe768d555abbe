"""A pair without models: the next token is a function of the prefix that the cache holds, so that a mistake
in the bookkeeping becomes a wrong token, and a hole in a cache an error.
"""

from dataclasses import dataclass, field, replace

from serving.core.scores import IMPORTANCE
from serving.core.tree_growth import ROOT, TreeGrowth, kept_parents, pick
from serving.hardware.executor import TransientWorkError
from serving.learned.medusa import MedusaHeads
from serving.messages import (
    MEDUSA_TREE,
    DraftBatch,
    DraftBatchOutcome,
    DraftOutcome,
    DraftTree,
    DraftWork,
    ForwardWork,
    Outcome,
    SequenceSlice,
    SliceOutcome,
    Span,
    TensorRef,
    Verdict,
    Work,
    draft_works,
)

MODULUS, VOCABULARY = (1 << 61) - 1, 997
LAYERS = 8
ROW_NBYTES = 8192
"""Bytes of a hidden state."""


def extend(prefix: int, token: int) -> int:
    return (prefix * 1000003 + token * 7919 + 12345) % MODULUS


def chance(prefix: int, salt: int) -> float:
    return ((prefix ^ salt) * 0x9E3779B97F4A7C15 >> 20 & 0xFFFFF) / 0x100000


def target_token(prefix: int) -> int:
    return (prefix >> 7) % VOCABULARY


def own_text(prompt: tuple[int, ...], limit: int, ends: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The text that the target alone writes."""
    prefix, out = 1, []
    for token in prompt:
        prefix = extend(prefix, token)
    while len(out) < limit and not (out and out[-1] in ends):
        out.append(target_token(prefix))
        prefix = extend(prefix, out[-1])
    return tuple(out)


@dataclass
class FakePair:
    """A drafter that agrees with the target with probability `alpha`, and the target, on one chip."""

    alpha: float = 0.7
    step_s: float = 0.01
    forward_s: float = 0.015
    token_s: float = 2e-4
    hidden_states: dict[str, tuple[tuple[int, ...], list[int]]] = field(default_factory=dict)
    """By id of a tensor: the tokens and their prefixes; shared by chips that send hidden states to each other."""
    caches: dict[tuple[str, int | None], list[int]] = field(default_factory=dict)
    drafts_at: dict[tuple[str, int | None], int] = field(default_factory=dict)
    """Where the drafts of a session's last forward began."""
    medusa: MedusaHeads | None = None
    num_tokens_run: int = 0

    def execute(self, work: Work) -> tuple[Outcome, float]:
        if isinstance(work, DraftWork):
            return self._generate(work)
        if isinstance(work, DraftBatch):
            return self._generate_batch(work)
        return self._forward(work)

    def drop(self, session: str, first: int | None) -> None:
        self.caches.pop((session, first), None)
        self.drafts_at.pop((session, first), None)

    def move(self, session: str, to: str) -> None:
        self.caches[to, None] = self.caches.pop((session, None))

    def copy(self, session: str, to: str, length: int) -> None:
        assert len(self.caches[session, None]) > length
        self.caches[to, None] = self.caches[session, None][: length + 1]

    def drafter_token(self, prefix: int) -> int:
        token = target_token(prefix)
        agrees = chance(prefix, 1) < self.alpha
        return token if agrees else (token + 1 + int(chance(prefix, 2) * 5)) % VOCABULARY

    def tops(self, prefix: int) -> tuple[int, int, int]:
        """The drafter's three top candidates, among which is the target's token."""
        own, target = self.drafter_token(prefix), target_token(prefix)
        return own, (own + 7) % VOCABULARY if own == target else target, (own + 11) % VOCABULARY

    def _score(self, prefix: int, name: str) -> float:
        agrees = self.drafter_token(prefix) == target_token(prefix)
        x = chance(prefix, sum(map(ord, name)))
        return 0.5 + 0.5 * x if agrees else 0.75 * x

    def _cache(self, session: str, part: int | None, start: int) -> list[int]:
        cache = self.caches.setdefault((session, part), [1])
        if len(cache) <= start:
            raise AssertionError(
                f"hole: the cache of {session}/{part} has {len(cache) - 1} tokens, the work starts at {start}"
            )
        del cache[start + 1 :]
        return cache

    def _generate_batch(self, batch: DraftBatch) -> tuple[DraftBatchOutcome, float]:
        """One forward: as long as its longest work."""
        assert len({work.session for work in batch.works}) == len(batch.works) > 1
        done = [self._generate(work) for work in batch.works]
        return DraftBatchOutcome(tuple(outcome for outcome, _ in done)), max(seconds for _, seconds in done)

    def _generate(self, work: DraftWork) -> tuple[DraftOutcome, float]:
        cache = self._cache(work.session, None, work.start)
        if work.stop_rule.tree:
            return self._tree(work, cache)
        if work.branches:
            return self._branches(work, cache[-1])
        assert work.input_tokens or not work.stop_rule.max_tokens, "a draft needs at least one input token"
        for token in work.input_tokens:
            cache.append(extend(cache[-1], token))
        tokens: list[int] = []
        scores: dict[str, list[float]] = {name: [] for name in work.requested_scores}
        if IMPORTANCE in scores and work.num_adopted_drafts:
            before = (
                len(cache) - 1 - (work.num_adopted_drafts if work.stop_rule.max_tokens else work.num_adopted_drafts - 1)
            )
            scores[IMPORTANCE] = [
                self._score(prefix, IMPORTANCE) for prefix in cache[before : before + work.num_adopted_drafts]
            ]
        stopped, level, odds, tops = False, 1.0, [], []
        while (
            len(tokens) < work.stop_rule.max_tokens and not stopped and not (tokens and tokens[-1] in work.stop_tokens)
        ):
            if tokens:
                cache.append(extend(cache[-1], tokens[-1]))
            if work.stop_rule.score:
                level = work.stop_rule.level(level, self._score(cache[-1], work.stop_rule.score))
                stopped = level < work.stop_rule.threshold
            if stopped and not work.stop_rule.keep_last and len(tokens) >= work.stop_rule.min_tokens:
                break
            tokens.append(self.drafter_token(cache[-1]))
            odds += _odds(work, cache[-1:])
            tops.append(self.tops(cache[-1]))
            for name in work.requested_scores:
                scores[name].append(self._score(cache[-1], name))
        self.num_tokens_run += len(work.input_tokens) + max(0, len(tokens) - 1)
        seen = {k: tuple(v) for k, v in scores.items()}
        done = DraftOutcome(tuple(tokens), seen, tuple(tops), stopped, len(cache) - 1, tuple(odds), (0,) * len(odds))
        return done, self.step_s * max(1, len(tokens)) + self.token_s * len(work.input_tokens)

    def _tree(self, work: DraftWork, cache: list[int]) -> tuple[DraftOutcome, float]:
        """A tree of the top candidates, the drafter's own the likeliest; the cache keeps the input tokens."""
        for token in work.input_tokens:
            cache.append(extend(cache[-1], token))
        root = cache[-1]
        for token in work.branches[0] if work.branches else ():
            root = extend(root, token)
        growth = TreeGrowth(work.stop_rule, work.stop_tokens, work.sampling is not None)
        prefixes, odds = {ROOT: root}, dict[int, TensorRef]()
        while growth.frontier:
            tops = [self.tops(prefixes[node])[: growth.num_children(node)] for node in growth.frontier]
            odds |= {node: ref for node in growth.frontier for ref in _odds(work, [prefixes[node]])}
            growth.extend([list(zip(own, (0.6, 0.3, 0.1), strict=False)) for own in tops], [False] * len(tops))
            for node in range(len(prefixes) - 1, len(growth.tokens)):
                prefixes[node] = extend(prefixes[growth.parents[node]], growth.tokens[node])
        kept = growth.kept()
        tokens, refs = pick(growth.tokens, kept), [odds[growth.parents[n]] for n in kept if growth.parents[n] in odds]
        self.num_tokens_run += work.num_inputs + sum(map(len, growth.levels[1:]))
        scores = {name: (0.5,) * len(tokens) for name in work.requested_scores}
        done = DraftOutcome(
            tokens, scores, tuple((token,) for token in tokens), False, len(cache) - 1, tuple(refs), (0,) * len(refs),
            parents=kept_parents(growth.parents, kept),
        )  # fmt: skip
        return done, self.step_s * len(growth.levels) + self.token_s * work.num_inputs

    def _branches(self, work: DraftWork, base: int) -> tuple[DraftOutcome, float]:
        prefixes = []
        for branch in work.branches:
            prefix = base
            for token in branch:
                prefix = extend(prefix, token)
            prefixes.append(prefix)
        tokens = tuple(self.drafter_token(p) for p in prefixes)
        seen = [name for name in work.requested_scores if name != IMPORTANCE]
        scores = {name: tuple(self._score(p, name) for p in prefixes) for name in seen}
        tops = tuple(self.tops(p) for p in prefixes)
        odds = tuple(_odds(work, prefixes))
        return DraftOutcome(tokens, scores, tops, False, work.start, odds, (0,) * len(odds)), self.step_s

    def _forward(self, work: ForwardWork) -> tuple[tuple[SliceOutcome, ...], float]:
        copied = [seq.session for seq, _ in work.copies]
        for seq in work.slices if copied else ():  # as the engine does, caches are cut before others are copied
            if seq.session not in copied and seq.kept_tree_nodes is None:
                self._cache(seq.session, work.span.start_layer, seq.start)
        for seq, source in work.copies:
            held = self.caches[source, work.span.start_layer]
            assert len(held) > seq.start, f"{source} has {len(held) - 1} tokens cached, {seq.start} are copied"
            self.caches[seq.session, work.span.start_layer] = held[: seq.start + 1]
        results = [
            self._run_slice(work.span, seq, out) for seq, out in zip(work.slices, work.hidden_exports, strict=True)
        ]
        if MEDUSA_TREE in work.requested_outputs:
            results = [
                self._with_tree(result, seq, work.span) for result, seq in zip(results, work.slices, strict=True)
            ]
        n = sum(seq.num_tokens for seq in work.slices)
        self.num_tokens_run += n
        return tuple(results), self.forward_s + self.token_s * n

    def _run_slice(self, span: Span, seq: SequenceSlice, out: str) -> SliceOutcome:
        tokens, prefixes = (
            (seq.tokens, [])
            if span.embedding
            else self.hidden_states[seq.hidden_states.id if seq.hidden_states else ""]
        )
        if span.start_layer < span.end_layer:
            tokens = tokens if span.embedding else tokens[seq.hidden_offset : seq.hidden_offset + seq.num_tokens]
            assert len(tokens) == seq.num_tokens, (
                f"{seq.num_tokens} tokens in the slice, but {len(tokens)} tokens or hidden states"
            )
            prefixes = self._append(tokens, seq, span)
        if not span.lm_head:
            if not out:
                return SliceOutcome(None, None)
            n = seq.num_tokens if out == "all" else seq.num_drafts + 1
            ref = TensorRef(f"{span.start_layer}/{seq.session}/{seq.start}/{len(self.hidden_states)}", n * ROW_NBYTES)
            self.hidden_states[ref.id] = tokens[-n:], prefixes[-n:]
            return SliceOutcome(None, ref)
        return SliceOutcome(self._verdict(seq, prefixes) if seq.rule else None, None)

    def _append(self, tokens: tuple[int, ...], seq: SequenceSlice, span: Span) -> list[int]:
        """Appends the tokens and returns their prefixes in the cache."""
        key, plain = (seq.session, span.start_layer), seq.num_tokens - seq.num_drafts
        if seq.kept_tree_nodes is not None:
            whole, at = self.caches[key], self.drafts_at[key] + 1
            whole[at:] = [whole[at + i] for i in seq.kept_tree_nodes]
        cache = self._cache(seq.session, span.start_layer, seq.start)
        self.drafts_at[key] = seq.start + plain
        for i, token in enumerate(tokens):
            tree = seq.parents is not None and i >= plain
            before = cache[seq.start + plain + seq.parents[i - plain] + 1] if tree and seq.parents else cache[-1]
            cache.append(extend(before, token))
        return cache[seq.start + 1 :]

    def _verdict(self, seq: SequenceSlice, prefixes: list[int]) -> Verdict:
        before, drafts = prefixes[-seq.num_drafts - 1 :], seq.tokens[len(seq.tokens) - seq.num_drafts :]
        assert len(drafts) == seq.num_drafts, "drafts to verify are missing"
        parents = range(-1, seq.num_drafts - 1) if seq.parents is None else seq.parents
        if seq.sampling and seq.num_drafts:
            assert [odds.id for odds in seq.draft_probs] == [f"odds/{before[parent + 1]}" for parent in parents]
        path = [-1]
        while True:
            wanted = target_token(before[path[-1] + 1])
            stands = [i for i, p in enumerate(parents) if p == path[-1] and drafts[i] == wanted]
            if not stands:
                break
            path.append(stands[0])
        return Verdict(len(path) - 1, wanted, None if seq.parents is None else tuple(path[1:]))

    def _with_tree(self, result: SliceOutcome, seq: SequenceSlice, span: Span) -> SliceOutcome:
        """The Medusa heads' candidates: the first is right with probability `alpha`, else the second."""
        if result.verdict is None:
            return result
        assert self.medusa
        refs, cache = seq.hidden_states, self.caches.get((seq.session, span.start_layer), [])
        before = (self.hidden_states[refs.id][1] if refs else cache)[-seq.num_drafts - 1 :]
        verdict, likeliest = result.verdict, []
        prefix = extend(before[(verdict.kept_tree_nodes or (verdict.accepted - 1,))[-1] + 1], verdict.next_token)
        for head in range(self.medusa.num_heads):
            token, other = target_token(prefix), (target_token(prefix) + 3) % VOCABULARY
            ranks = [token, other] if chance(prefix, head) < self.alpha else [other, token]
            likeliest.append(ranks + [(token + 5 + i) % VOCABULARY for i in range(self.medusa.top_k)])
            prefix = extend(prefix, token)
        return replace(
            result, verdict=replace(verdict, next_tree=DraftTree(self.medusa.propose(likeliest), self.medusa.parents))
        )


@dataclass
class FailingPair(FakePair):
    """Every job that drafts for one of the `bad` sessions fails."""

    bad: frozenset[str] = frozenset()

    def execute(self, work: Work) -> tuple[Outcome, float]:
        if not self.bad.isdisjoint(draft.session for draft in draft_works(work)):
            raise TransientWorkError("out of memory")
        return super().execute(work)


def _odds(work: DraftWork, prefixes: list[int]) -> list[TensorRef]:
    """References to distributions, named by the prefix of each token."""
    return [TensorRef(f"odds/{prefix}", 16) for prefix in prefixes] if work.sampling or work.full_draft_probs else []
