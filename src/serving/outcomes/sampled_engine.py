"""An engine without text: drafts are right or wrong by luck. The hot path of large simulations.

Tokens are numbers that say where they belong: at position p the target writes 4p, a wrong draft is 4p + 1, and 4p + 2
and 4p + 3 are other candidates. So a verdict needs no luck, and a draft that is checked at a place where it was not
written is an error. Everything that a position decides alone is made once and shared by all sessions.

Which drafts are right, by keyed luck: the same for every policy under one seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from serving.core.keyed_random import key, substream, uniform_at
from serving.core.scores import IMPORTANCE
from serving.hardware.estimator import forward_load
from serving.hardware.latency import ForwardLoad
from serving.learned.medusa import MedusaHeads
from serving.messages import (
    MEDUSA_TREE,
    DraftOutcome,
    DraftStopRule,
    DraftWork,
    EarlyExitRule,
    ForwardWork,
    Outcome,
    SequenceSlice,
    SliceOutcome,
    Span,
    TensorRef,
    Verdict,
)
from serving.outcomes.loads import DraftLoads, load_counter, summed

_BITS = 17
"""One draw of 51 bits decides three positions, each to 1 in 131,072."""
_MASK, _DRAW_RANGE = (1 << _BITS) - 1, 1 << 3 * _BITS


@dataclass(frozen=True)
class MatchProbabilities:
    """P(the drafter's next token is the target's): at an answer's first position, after a right one, after a wrong one.

    A Markov chain of order 1 over positions; all equal: independent trials, and acceptance lengths are geometric.
    """

    first: float
    after_right: float
    after_wrong: float

    def __post_init__(self) -> None:
        for name in ("first", "after_right", "after_wrong"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"acceptance: {name} is {getattr(self, name)}; a probability lies between 0 and 1")

    @property
    def thresholds(self) -> tuple[int, int, int]:
        """What a draw of 17 bits has to stay below: after a wrong one, after a right one, at the first position."""
        return tuple(round(p * (1 << _BITS)) for p in (self.after_wrong, self.after_right, self.first))  # type: ignore[return-value]


class AcceptanceDraws:
    """One session's luck: a bit per position of its answer, drawn as far as somebody asked."""

    __slots__ = ("_bits", "_last", "_substream", "num_drawn", "prompt_len", "stream")

    def __init__(self, seed: int, name: str, prompt_len: int) -> None:
        self.prompt_len, self.stream = prompt_len, key(seed, name)
        self._substream = substream(self.stream, "accept")
        self.num_drawn = self._bits = 0
        self._last = 2

    def num_accepted(self, prefix_len: int, cap: int, thresholds: tuple[int, int, int]) -> int:
        """How many of the `cap` drafts behind `prefix_len` tokens are right before the first wrong one."""
        offset = prefix_len - self.prompt_len
        if offset + cap > self.num_drawn:
            self._draw(offset + cap, thresholds)
        wrong = ~(self._bits >> offset)
        return min(cap, (wrong & -wrong).bit_length() - 1)

    def previous_is_right(self, prefix_len: int) -> int:
        """Was the position before `prefix_len` right? At the first one, yes."""
        offset = prefix_len - self.prompt_len
        return self._bits >> (offset - 1) & 1 if offset > 0 else 1

    def _draw(self, upto: int, thresholds: tuple[int, int, int]) -> None:
        last, known, right = self._last, self.num_drawn, self._bits
        while known < upto:
            bits = int(uniform_at(self._substream, known // 3) * _DRAW_RANGE)
            first = (bits & _MASK) < thresholds[last]
            second = (bits >> _BITS & _MASK) < thresholds[first]
            last = (bits >> 2 * _BITS) < thresholds[second]
            right |= (first + 2 * second + 4 * last) << known
            known += 3
        self._last, self.num_drawn, self._bits = last, known, right


TOKENS_PER_POSITION = 4
_EMPTY_RESULT = SliceOutcome(None, None)


class ScoreSource(Protocol):
    """Scores and candidates for drafts that luck has decided."""

    def score(self, draws: AcceptanceDraws, prefix_len: int, i: int, num_accepted: int, name: str) -> float:
        """Of draft i behind `prefix_len` tokens, where the first `num_accepted` are right."""
        ...

    def target_rank(self, draws: AcceptanceDraws, prefix_len: int, i: int, num_accepted: int) -> int:
        """Where the target's token is among the drafter's three candidates for draft i; 3: nowhere."""
        ...

    def exit_layer(self, draws: AcceptanceDraws, prefix_len: int, i: int, num_accepted: int) -> int:
        """After how many layers draft i is read off, where the drafter leaves early."""
        ...

    def importance(self, draws: AcceptanceDraws, prefix_len: int, n: int) -> tuple[float, ...]: ...

    def last_accepted_node(self, draws: AcceptanceDraws, prefix_len: int) -> int:
        """The last candidate that is right of the tree which the target's heads propose beside token `prefix_len`; -1:
        none.
        """
        ...


class SampledEngine:
    """One model of a pair that was never run; the drafter by `DraftWork`, the target by `ForwardWork`.

    `prompts` is how many tokens each session's prompt has; `ranked` asks for the drafter's candidates, or its whole
    distributions, which only some policies look at; `rule` is where it leaves early. Caches are not kept, so not
    checked.
    """

    def __init__(
        self, layers: int, prompt_lens: Mapping[str, int], probabilities: MatchProbabilities, scores: ScoreSource, seed: int, needs_candidates: bool,
        exit_rule: EarlyExitRule | None = None, medusa: MedusaHeads | None = None,
    ) -> None:  # fmt: skip
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

    def execute(self, work: DraftWork | ForwardWork) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        """Draws the outcome. Raises ValueError for another rule of early exit, which nobody fitted."""
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
        stop, fed = work.stop_rule, len(work.input_tokens)
        if (
            not stop.max_tokens
            or work.branches
            or work.requested_scores
            or stop.score
            or work.sampling
            or work.early_exit
            or self._needs_candidates
        ):
            return self._general_draft(work)
        at, cap = work.start + fed, stop.max_tokens
        rights = self._sessions.get(work.session) or self._draws_of(work.session)
        run = rights.num_accepted(at, cap, self._thresholds)
        return self._draft_cache.get((at, fed, cap, run)) or self._make_draft(at, fed, cap, run)

    def drop(self, session: str, first: int | None) -> None:
        """Frees a session's luck: it can be drawn again."""
        if first is None:
            self._sessions.pop(session, None)
            self._load_counter.drop(session)

    def _draws_of(self, session: str) -> AcceptanceDraws:
        rights = self._sessions.get(session)
        if rights is None:
            rights = self._sessions[session] = AcceptanceDraws(self._seed, session, self._prompt_lens[session])
        return rights

    def _make_draft(
        self, prefix_len: int, num_inputs: int, cap: int, num_accepted: int
    ) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        """A draft of which all is known: the first `num_accepted` tokens right, the rest wrong."""
        tokens = tuple(TOKENS_PER_POSITION * (prefix_len + i) + (i >= num_accepted) for i in range(cap))
        drafted = DraftOutcome(
            tokens, {}, tuple(_top_candidates(token, 3) for token in tokens), False, prefix_len + cap - 1
        )
        made = self._draft_cache[prefix_len, num_inputs, cap, num_accepted] = (
            drafted,
            (summed(self._draft_loads.pass_loads(prefix_len - num_inputs, num_inputs, cap)),),
        )
        return made

    def _general_draft(self, work: DraftWork) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        """Drafts with scores, stop rules, exits, distributions or branches."""
        if work.early_exit != self._exit_rule:
            raise ValueError(
                f"session {work.session!r} leaves layers early by a rule that this model of acceptance does not know"
            )
        if work.branches:
            return self._branches(work)
        rights, at, stop = self._draws_of(work.session), work.start + len(work.input_tokens), work.stop_rule
        run = rights.num_accepted(at, stop.max_tokens, self._thresholds) if stop.max_tokens else 0
        fell = self._stop_index(rights, at, run, stop)
        passes, stopped = min(stop.max_tokens, fell + 1), fell < stop.max_tokens
        n = passes - (stopped and not stop.keep_last and fell >= stop.min_tokens)
        tokens, scores, tops = self._tokens_and_scores(work, rights, at, n, run)
        if IMPORTANCE in work.requested_scores:
            first = (
                at - work.num_adopted_drafts + (not stop.max_tokens) if work.num_adopted_drafts else at
            )  # where nothing is written, one is not fed
            scores[IMPORTANCE] = self._scores.importance(rights, first, work.num_adopted_drafts + n)
        depths = self._exit_layers(rights, at, passes, run)
        odds, kept = self._draft_probs(work, n)
        drafted = DraftOutcome(
            tokens, scores, tops, stopped, at + max(0, passes - 1), odds, kept, self._layer_shares(depths[:n])
        )
        if not stop.max_tokens:
            return drafted, self._load_counter.prefill(work.session, work.start, len(work.input_tokens))
        return drafted, self._load_counter.draft(work.session, work.start, len(work.input_tokens), depths)

    def _exit_layers(self, draws: AcceptanceDraws, prefix_len: int, n: int, num_accepted: int) -> Sequence[int]:
        """After how many layers each of `n` drafts is read off; where none leaves early only their number counts."""
        return (
            [self._scores.exit_layer(draws, prefix_len, i, num_accepted) for i in range(n)]
            if self._exit_rule
            else (self._layers,) * n
        )

    def _layer_shares(self, exit_layers: Sequence[int]) -> tuple[float, ...]:
        return tuple(depth / self._layers for depth in exit_layers) if self._exit_rule else ()

    def _draft_probs(self, work: DraftWork, n: int) -> tuple[tuple[TensorRef, ...], tuple[int, ...]]:
        """Distributions where they are wanted: of as many tokens as top-k leaves, else of all."""
        if not (work.sampling or work.full_draft_probs):
            return (), ()
        kept = work.sampling.top_k if work.sampling and not work.full_draft_probs else 0
        return tuple(TensorRef(f"odds/{work.session}/{next(self._serial)}", 0) for _ in range(n)), (kept,) * n

    def _stop_index(self, draws: AcceptanceDraws, prefix_len: int, num_accepted: int, stop: DraftStopRule) -> int:
        """The first draft whose score falls below the stop rule's threshold, or the cap."""
        if not stop.score:
            return stop.max_tokens
        score = self._scores.score
        return next(
            (
                i
                for i in range(stop.max_tokens)
                if score(draws, prefix_len, i, num_accepted, stop.score) < stop.threshold
            ),
            stop.max_tokens,
        )

    def _tokens_and_scores(
        self, work: DraftWork, draws: AcceptanceDraws, prefix_len: int, n: int, num_accepted: int
    ) -> tuple[tuple[int, ...], dict[str, tuple[float, ...]], tuple[tuple[int, ...], ...]]:
        scored = self._scores
        tokens = tuple(TOKENS_PER_POSITION * (prefix_len + i) + (i >= num_accepted) for i in range(n))
        scores = {
            name: tuple(scored.score(draws, prefix_len, i, num_accepted, name) for i in range(n))
            for name in work.requested_scores
            if name != IMPORTANCE
        }
        return (
            tokens,
            scores,
            tuple(
                _top_candidates(t, scored.target_rank(draws, prefix_len, i, num_accepted)) for i, t in enumerate(tokens)
            ),
        )

    def _branches(self, work: DraftWork) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        """One token after each branch, right or wrong by its position; what follows a wrong guess is never seen."""
        rights, found, depths = self._draws_of(work.session), [], list[int]()
        for branch in work.branches:
            at = work.start + len(branch)
            run = rights.num_accepted(at, 1, self._thresholds)
            found.append(self._tokens_and_scores(work, rights, at, 1, run))
            depths += self._exit_layers(rights, at, 1, run)
        scores = {
            name: tuple(each[name][0] for _, each, _ in found) for name in work.requested_scores if name != IMPORTANCE
        }
        tokens, tops = tuple(t[0] for t, _, _ in found), tuple(t[0] for _, _, t in found)
        odds, kept = self._draft_probs(work, len(found))
        rows = sum(len(branch) for branch in work.branches)
        loads = self._load_counter.branch(work.session, work.start, rows, depths)
        return DraftOutcome(tokens, scores, tops, False, work.start, odds, kept, self._layer_shares(depths)), loads

    def _verdict(self, seq: SequenceSlice) -> SliceOutcome:
        check = seq.num_drafts
        at, drafts = seq.start + seq.num_tokens - check, seq.tokens[-check:] if check else ()
        known = self._result_cache.get((at, drafts)) if seq.parents is None else None
        return known or self._make_verdict(seq, at, drafts)

    def _make_verdict(self, seq: SequenceSlice, prefix_len: int, drafts: tuple[int, ...]) -> SliceOutcome:
        if seq.parents is not None:
            return SliceOutcome(_tree_verdict(prefix_len, drafts, seq.parents), None)
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
        """A verdict with the tree that the target's heads grow behind it."""
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
        return SliceOutcome(replace(verdict, next_tree=(tokens, medusa.parents)), None)

    def _hidden(self, seq: SequenceSlice, span: Span, out: str) -> SliceOutcome:
        if not out:
            return _EMPTY_RESULT
        sent = seq.num_tokens if out == "all" else seq.num_drafts + 1
        return SliceOutcome(None, TensorRef(f"hidden/{span.end_layer}/{seq.session}/{next(self._serial)}", sent))


def _tree_verdict(prefix_len: int, drafts: Sequence[int], parents: Sequence[int]) -> Verdict:
    """The path of right candidates, which is where they say they belong."""
    path: list[int] = []
    while True:
        target, here = TOKENS_PER_POSITION * (prefix_len + len(path)), path[-1] if path else -1
        child = next((i for i, p in enumerate(parents) if p == here and drafts[i] == target), None)
        if child is None:
            return Verdict(len(path), target, tuple(path))
        path.append(child)


def _top_candidates(token: int, rank: int) -> tuple[int, ...]:
    """The written token, and two others; `rank` is the place of the target's among them."""
    first = token - token % TOKENS_PER_POSITION
    others = [first + 2, first + 3]
    if token != first and rank in (1, 2):
        others[rank - 1] = first
    return (token, *others)
