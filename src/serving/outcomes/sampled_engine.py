"""An engine without text: random numbers decide which drafts are right, the same for every policy under one seed. It is
the hot path of large simulations.

A token is a number that contains its position: at position p the target writes 4p, a wrong draft is 4p + 1, and 4p + 2
and 4p + 3 are other candidates. So a verdict needs no random numbers, and a draft that is verified at another position
raises an error. Results that depend on the position alone are cached for all sessions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

from serving.core.draft_tree import accept_greedily
from serving.core.importance import importance_scores
from serving.core.scores import IMPORTANCE_SCORES, NUM_TOP_CANDIDATES
from serving.core.tree_growth import kept_parents, pick
from serving.engines.draft_batch import execute_one_by_one
from serving.hardware.latency import ForwardLoad, forward_load
from serving.learned.medusa import MedusaHeads
from serving.messages import (
    MEDUSA_TREE,
    DraftBatch,
    DraftOutcome,
    DraftStopRule,
    DraftTree,
    DraftWork,
    EarlyExitRule,
    ForwardWork,
    Outcome,
    SequenceSlice,
    SliceOutcome,
    Span,
    TensorRef,
    Verdict,
    Work,
)
from serving.outcomes.acceptance_draws import TOKENS_PER_POSITION, AcceptanceDraws, MatchProbabilities, ScoreSource
from serving.outcomes.loads import DraftLoads, load_counter, summed, tree_loads
from serving.outcomes.sampled_tree import SampledTree

_EMPTY_RESULT = SliceOutcome(None, None)


class SampledEngine:
    """One model of a simulated pair: the drafter executes `DraftWork`, the target `ForwardWork`. It keeps no caches.

    Args:
        layers: of this model.
        prompt_lens: tokens of each session's prompt.
        needs_candidates: True if the policy reads the drafter's candidates or whole distributions.
        exit_rule: the drafter's rule of early exit.
        medusa: heads of the target.
    """

    def __init__(
        self,
        layers: int,
        prompt_lens: Mapping[str, int],
        probabilities: MatchProbabilities,
        scores: ScoreSource,
        seed: int,
        needs_candidates: bool,
        exit_rule: EarlyExitRule | None = None,
        medusa: MedusaHeads | None = None,
    ) -> None:
        self._medusa = medusa
        self._prompt_lens, self._thresholds, self._scores, self._seed = (
            prompt_lens,
            probabilities.thresholds,
            scores,
            seed,
        )
        self._layers, self._needs_candidates, self._exit_rule = layers, needs_candidates, exit_rule
        self._sessions: dict[str, AcceptanceDraws] = {}
        self._draft_loads, self._load_counter = DraftLoads(layers), load_counter(layers, exit_rule)
        self._draft_cache: dict[tuple[int, int, int, int], tuple[DraftOutcome, tuple[ForwardLoad, ...]]] = {}
        self._result_cache: dict[tuple[int, tuple[int, ...]], SliceOutcome] = {}
        self._serial = count(1)

    def execute(self, work: Work) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        """Draws the outcome. Raises ValueError for another rule of early exit than `exit_rule`."""
        if isinstance(work, ForwardWork):
            span, rule = work.span, self._verdict
            if span.lm_head:
                results = tuple([rule(rows) if rows.rule else _EMPTY_RESULT for rows in work.slices])
                if MEDUSA_TREE in work.requested_outputs:
                    results = tuple(map(self._with_proposal, work.slices, results))
            else:
                results = tuple(
                    [self._hidden(rows, span, out) for rows, out in zip(work.slices, work.hidden_exports, strict=True)]
                )
            return results, (forward_load(work),)
        return execute_one_by_one(work, self._draft) if isinstance(work, DraftBatch) else self._draft(work)

    def _draft(self, work: DraftWork) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        stop, fed = work.stop_rule, len(work.input_tokens)
        if (
            not stop.max_tokens
            or work.branches
            or work.requested_scores
            or stop.score
            or stop.tree
            or work.sampling
            or work.early_exit
            or self._needs_candidates
        ):
            return self._general_draft(work)
        at, cap = work.start + fed, stop.max_tokens
        draws = self._sessions.get(work.session) or self._draws_of(work.session)
        run = draws.num_accepted(at, cap, self._thresholds)
        return self._draft_cache.get((at, fed, cap, run)) or self._make_draft(at, fed, cap, run)

    def drop(self, session: str, first: int | None) -> None:
        """Frees a session's random bits; they can be drawn again."""
        if first is None:
            self._sessions.pop(session, None)
            self._load_counter.drop(session)

    def move(self, session: str, to: str) -> None:
        """A session draws its own random bits, whatever its cache holds."""
        self._sessions.pop(session, None)
        self._load_counter.move(session, to)

    def copy(self, session: str, to: str, length: int) -> None:
        """There are no caches to copy."""

    def _draws_of(self, session: str) -> AcceptanceDraws:
        draws = self._sessions.get(session)
        if draws is None:
            draws = self._sessions[session] = AcceptanceDraws(self._seed, session, self._prompt_lens[session])
        return draws

    def _make_draft(
        self, prefix_len: int, num_inputs: int, cap: int, num_accepted: int
    ) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        """A draft whose first `num_accepted` tokens are right and whose rest is wrong."""
        tokens = tuple(TOKENS_PER_POSITION * (prefix_len + i) + (i >= num_accepted) for i in range(cap))
        candidates = tuple(_top_candidates(token, NUM_TOP_CANDIDATES) for token in tokens)
        drafted = DraftOutcome(tokens, {}, candidates, False, prefix_len + cap - 1)
        made = self._draft_cache[prefix_len, num_inputs, cap, num_accepted] = (
            drafted,
            (summed(self._draft_loads.pass_loads(prefix_len - num_inputs, num_inputs, cap)),),
        )
        return made

    def _general_draft(self, work: DraftWork) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        """A draft with scores, a stop rule, early exit, distributions or branches."""
        if work.early_exit != self._exit_rule:
            raise ValueError(
                f"session {work.session!r} leaves layers early by a rule that this model of acceptance does not know"
            )
        if work.stop_rule.tree:
            return self._tree(work)
        if work.branches:
            return self._branches(work)
        draws, at, stop = self._draws_of(work.session), work.start + len(work.input_tokens), work.stop_rule
        run = draws.num_accepted(at, stop.max_tokens, self._thresholds) if stop.max_tokens else 0
        fell = self._stop_index(draws, at, run, stop)
        passes, stopped = min(stop.max_tokens, fell + 1), fell < stop.max_tokens
        n = passes - (stopped and not stop.keep_last and fell >= stop.min_tokens)
        tokens, scores, tops = self._tokens_and_scores(work, draws, at, n, run)
        for name in importance_scores(work.requested_scores):
            first = (
                at - work.num_adopted_drafts + (not stop.max_tokens) if work.num_adopted_drafts else at
            )  # where nothing is written, one is not fed
            scores[name] = self._scores.importance(draws, first, work.num_adopted_drafts + n, name)
        depths = self._exit_layers(draws, at, passes, run)
        probs, kept = self._draft_probs(work, n)
        drafted = DraftOutcome(
            tokens, scores, tops, stopped, at + max(0, passes - 1), probs, kept, self._layer_shares(depths[:n])
        )
        if not stop.max_tokens:
            return drafted, self._load_counter.prefill(work.session, work.start, len(work.input_tokens))
        return drafted, self._load_counter.draft(work.session, work.start, len(work.input_tokens), depths)

    def _exit_layers(self, draws: AcceptanceDraws, prefix_len: int, n: int, num_accepted: int) -> Sequence[int]:
        """The exit layers of `n` drafts; without early exit all of the model's layers."""
        return (
            [self._scores.exit_layer(draws, prefix_len, i, num_accepted) for i in range(n)]
            if self._exit_rule
            else (self._layers,) * n
        )

    def _layer_shares(self, exit_layers: Sequence[int]) -> tuple[float, ...]:
        return tuple(depth / self._layers for depth in exit_layers) if self._exit_rule else ()

    def _draft_probs(self, work: DraftWork, n: int) -> tuple[tuple[TensorRef, ...], tuple[int, ...]]:
        """References to the drafts' distributions, if they are needed, and over how many tokens each is; 0: all."""
        if not (work.sampling or work.full_draft_probs):
            return (), ()
        kept = work.sampling.top_k if work.sampling and not work.full_draft_probs else 0
        return tuple(TensorRef(f"odds/{work.session}/{next(self._serial)}", 0) for _ in range(n)), (kept,) * n

    def _stop_index(self, draws: AcceptanceDraws, prefix_len: int, num_accepted: int, stop: DraftStopRule) -> int:
        """The index of the first draft whose level is below the stop rule's threshold, else the cap."""
        if not stop.score:
            return stop.max_tokens
        level = 1.0
        for i in range(stop.max_tokens):
            level = stop.level(level, self._scores.score(draws, prefix_len, i, num_accepted, stop.score))
            if level < stop.threshold:
                return i
        return stop.max_tokens

    def _tokens_and_scores(
        self, work: DraftWork, draws: AcceptanceDraws, prefix_len: int, n: int, num_accepted: int
    ) -> tuple[tuple[int, ...], dict[str, tuple[float, ...]], tuple[tuple[int, ...], ...]]:
        scored = self._scores
        tokens = tuple(TOKENS_PER_POSITION * (prefix_len + i) + (i >= num_accepted) for i in range(n))
        scores = {
            name: tuple(scored.score(draws, prefix_len, i, num_accepted, name) for i in range(n))
            for name in work.requested_scores
            if name not in IMPORTANCE_SCORES
        }
        return (
            tokens,
            scores,
            tuple(
                _top_candidates(t, scored.target_rank(draws, prefix_len, i, num_accepted)) for i, t in enumerate(tokens)
            ),
        )

    def _branches(self, work: DraftWork) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        """One token after each branch, right or wrong by its position; a token after a wrong guess is never used."""
        draws, found, depths = self._draws_of(work.session), [], list[int]()
        for branch in work.branches:
            at = work.start + len(branch)
            run = draws.num_accepted(at, 1, self._thresholds)
            found.append(self._tokens_and_scores(work, draws, at, 1, run))
            depths += self._exit_layers(draws, at, 1, run)
        scores = {
            name: tuple(each[name][0] for _, each, _ in found)
            for name in work.requested_scores
            if name not in IMPORTANCE_SCORES
        }
        tokens, tops = tuple(t[0] for t, _, _ in found), tuple(t[0] for _, _, t in found)
        probs, kept = self._draft_probs(work, len(found))
        rows = sum(len(branch) for branch in work.branches)
        loads = self._load_counter.branch(work.session, work.start, rows, depths)
        return DraftOutcome(tokens, scores, tops, False, work.start, probs, kept, self._layer_shares(depths)), loads

    def _tree(self, work: DraftWork) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        """A tree, which leaves the input tokens alone in the cache."""
        end, stop = work.start + work.num_inputs, work.stop_rule
        draws, sampled = self._draws_of(work.session), work.sampling is not None
        growth = SampledTree(draws, end, stop, self._scores, self._thresholds, sampled).growth
        kept = growth.kept()
        tokens, parents = pick(growth.tokens, kept), kept_parents(growth.parents, kept)
        refs, support = self._draft_probs(work, len(growth.tokens) + 1)
        loads = tree_loads(self._layers, work.start, work.num_inputs, [len(own) for own in growth.levels[1:]])
        return DraftOutcome(
            tokens,
            {name: (0.0,) * len(tokens) for name in work.requested_scores},
            tuple((token,) for token in tokens),
            False,
            work.start + len(work.input_tokens),
            tuple(refs[growth.parents[node] + 1] for node in kept) if refs else (),
            support[: len(tokens)],
            parents=parents,
        ), (summed(loads),)

    def _verdict(self, seq: SequenceSlice) -> SliceOutcome:
        check = seq.num_drafts
        at, drafts = seq.start + seq.num_tokens - check, seq.tokens[-check:] if check else ()
        known = self._result_cache.get((at, drafts)) if seq.parents is None else None
        return known or self._make_verdict(seq, at, drafts)

    def _make_verdict(self, seq: SequenceSlice, prefix_len: int, drafts: tuple[int, ...]) -> SliceOutcome:
        if seq.parents is not None:
            return SliceOutcome(
                accept_greedily(drafts, seq.parents, lambda path: TOKENS_PER_POSITION * (prefix_len + len(path))), None
            )
        accepted = 0
        for token in drafts:
            if token != TOKENS_PER_POSITION * (prefix_len + accepted):
                if token // TOKENS_PER_POSITION != prefix_len + accepted:
                    raise RuntimeError(
                        f"session {seq.session!r}: {token} is no draft for token {prefix_len + accepted}"
                    )
                break
            accepted += 1
        result = self._result_cache[prefix_len, drafts] = SliceOutcome(
            Verdict(accepted, TOKENS_PER_POSITION * (prefix_len + accepted)), None
        )
        return result

    def _with_proposal(self, seq: SequenceSlice, result: SliceOutcome) -> SliceOutcome:
        """The verdict with the tree that the target's heads propose after it."""
        verdict, medusa = result.verdict, self._medusa
        if verdict is None or medusa is None:
            return result
        at = verdict.next_token // TOKENS_PER_POSITION
        node = self._scores.last_accepted_node(self._draws_of(seq.session), at)
        right = set[int]()
        while node >= 0:
            right.add(node)
            node = medusa.parents[node]
        tokens = tuple(
            TOKENS_PER_POSITION * (at + len(ranks)) + (i not in right) for i, ranks in enumerate(medusa.tree)
        )
        return SliceOutcome(replace(verdict, next_tree=DraftTree(tokens, medusa.parents)), None)

    def _hidden(self, seq: SequenceSlice, span: Span, out: str) -> SliceOutcome:
        if not out:
            return _EMPTY_RESULT
        sent = seq.num_tokens if out == "all" else seq.num_drafts + 1
        return SliceOutcome(None, TensorRef(f"hidden/{span.end_layer}/{seq.session}/{next(self._serial)}", sent))


def _top_candidates(token: int, rank: int) -> tuple[int, ...]:
    """The drafted token and two others; the target's token is at index `rank`."""
    first = token - token % TOKENS_PER_POSITION
    others = [first + 2, first + 3]
    if token != first and rank in (1, 2):
        others[rank - 1] = first
    return (token, *others)
