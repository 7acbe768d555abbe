"""An engine that looks outcomes up in a trace, and counts what was not recorded.

The state of the drafter's cache is a `TracePosition`: the recorded text up to `base`, then the recorded continuation
from there. A token that is in neither is off the path: after it the position alone decides, as if the text were the
recorded one, and `UnrecordedCounts` counts it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from serving.core.draft_tree import first_path
from serving.core.importance import importance_scores
from serving.core.scores import IMPORTANCE_SCORES, NO_SCORERS, Scorers
from serving.core.stop_strings import TokenText, advance, no_token_text
from serving.engines.draft_batch import execute_one_by_one
from serving.hardware.executor import CacheHoleError
from serving.hardware.latency import ForwardLoad, forward_load
from serving.learned.medusa import MedusaHeads
from serving.messages import (
    MEDUSA_TREE,
    DraftBatch,
    DraftOutcome,
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
from serving.outcomes.loads import load_counter, tree_loads
from serving.outcomes.lookup import RecordedDraft, RecordedTree, TraceLookup, TracePosition, check_prompt
from serving.outcomes.trace import OutcomeTrace, RecordedSession

_EMPTY_RESULT = SliceOutcome(None, None)


@dataclass(slots=True)
class UnrecordedCounts:
    """How much was asked for that was not recorded."""

    requested: int = 0
    off_path: int = 0
    """Tokens that are neither on the recorded path nor in a recorded continuation of it."""
    beyond_draft_len: int = 0
    """Drafts after a wrong one, beyond the recorded length."""
    lookahead: int = 0
    """Tokens drafted ahead after a guess that was not recorded. Such a guess is wrong, so no text depends on them."""

    def notes(self) -> tuple[str, ...]:
        found = []
        if self.off_path + self.beyond_draft_len:
            share = (self.off_path + self.beyond_draft_len) / max(1, self.requested)
            found.append(
                f"{self.off_path} tokens left the recorded path, and {self.beyond_draft_len} drafts were deeper than "
                f"recorded ({share:.1%} of the requested tokens); they got the recorded outcome of the same position"
            )
        if self.lookahead:
            found.append(
                f"{self.lookahead} tokens were drafted ahead on wrong guesses that were not recorded: their lengths "
                "and exit layers are those of the recorded text; this changes how long the device is busy, not the text"
            )
        return tuple(found)


class TraceEngine:
    """One model of a recorded pair: the drafter executes `DraftWork`, the target `ForwardWork`.

    Args:
        sessions: the recorded session of each request.
        layers: of this model.
        unrecorded: shared counts, which the engine updates.
        exit_rule: the drafter's rule of early exit.
        scorers: trained scores of the drafter.
        medusa: heads of the target.
        token_text: the tokenizer's, for drafts that a stop string ends.
    """

    def __init__(
        self,
        trace: OutcomeTrace,
        sessions: Mapping[str, RecordedSession],
        layers: int,
        unrecorded: UnrecordedCounts,
        exit_rule: EarlyExitRule | None = None,
        scorers: Scorers = NO_SCORERS,
        medusa: MedusaHeads | None = None,
        token_text: TokenText = no_token_text,
    ) -> None:
        self._token_text = token_text
        self._medusa = medusa
        self._sessions, self._unrecorded, self._layers, self._exit_rule = sessions, unrecorded, layers, exit_rule
        self._lookup, self._load_counter = TraceLookup(trace.tables, scorers), load_counter(layers, exit_rule)
        self._drafter_positions: dict[str, TracePosition] = {}
        self._tree_starts: dict[str, int] = {}
        """Session -> the length of the text behind which its last tree grew."""
        self._cached_tokens: dict[tuple[str, int | None], int] = {}
        """Cached tokens of the target, by session and first layer."""
        self._serial = count(1)

    def execute(self, work: Work) -> tuple[Outcome, tuple[ForwardLoad, ...]]:
        """Looks the outcome up.

        Raises CacheHoleError for work that starts after the end of a cache, ValueError for a prompt that is not the
        session's, and for what the trace does not record: sampling, another early-exit rule, heads.
        """
        if isinstance(work, ForwardWork):
            for seq, _ in work.copies:
                self._cached_tokens[seq.session, work.span.start_layer] = seq.start
            results = tuple(
                self._run_slice(rows, work, out) for rows, out in zip(work.slices, work.hidden_exports, strict=True)
            )
            return results, (forward_load(work),)
        return execute_one_by_one(work, self._draft) if isinstance(work, DraftBatch) else self._draft(work)

    def _draft(self, work: DraftWork) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        if work.sampling is not None or work.early_exit != self._exit_rule:
            raise ValueError(
                f"session {work.session!r} samples, or leaves layers early by another rule, which the trace does not "
                "record"
            )
        session, position = self._session(work.session), self._drafter_positions.get(work.session, (0, 0))
        position = _truncated(position, work.start, work.session)
        if work.stop_rule.tree:
            return self._tree(work, session, position)
        return self._branches(work, session, position) if work.branches else self._continue(work, session, position)

    def drop(self, session: str, first: int | None) -> None:
        """Forgets a cache."""
        if first is None:
            self._drafter_positions.pop(session, None)
            self._tree_starts.pop(session, None)
            self._load_counter.drop(session)
        self._cached_tokens.pop((session, first), None)

    def move(self, session: str, to: str) -> None:
        """The drafter's cache of `session` becomes that of `to`, as far as its recorded prompt begins alike."""
        _, length = self._drafter_positions.pop(session, (0, 0))
        self._drafter_positions[to] = length, length
        self._tree_starts.pop(session, None)
        self._load_counter.move(session, to)

    def copy(self, session: str, to: str, length: int) -> None:  # noqa: ARG002
        """The drafter's cache of `to` holds the first `length` tokens of its recorded prompt."""
        self._drafter_positions[to] = length, length

    def _session(self, name: str) -> RecordedSession:
        try:
            return self._sessions[name]
        except KeyError:
            raise ValueError(f"session {name!r} was not among the calls that the trace was opened for") from None

    def _continue(
        self, work: DraftWork, session: RecordedSession, position: TracePosition
    ) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        lookup, fed = self._lookup, len(work.input_tokens)
        if work.stop_rule.max_tokens and not fed:
            raise ValueError(
                f"session {work.session!r} asks for {work.stop_rule.max_tokens} tokens with nothing to feed"
            )
        old = (
            work.num_adopted_drafts if work.stop_rule.max_tokens else max(0, work.num_adopted_drafts - 1)
        )  # adopted drafts that are fed
        begun = self._feed(session, position, work.input_tokens[: fed - old])
        position = self._feed(session, begun, work.input_tokens[fed - old :]) if old else begun
        found = lookup.draft(session, position, work.stop_rule, work.stop_tokens, partial(self._ends_answer, work))
        back = max(0, len(found.pass_indices) - 1)  # drafts that are fed back
        self._unrecorded.requested += fed + len(found.indices)
        self._unrecorded.beyond_draft_len += found.num_unrecorded
        self._drafter_positions[work.session] = lookup.advance(session, position, found.tokens[:back])[0]
        scores = self._scores(work, found.indices)
        if wanted := importance_scores(work.requested_scores):
            at = (
                lookup.next_indices(session, begun, work.num_adopted_drafts + len(found.indices))[0]
                if work.num_adopted_drafts
                else found.indices
            )
            scores |= {name: lookup.importance(at, name, fed=old > 0) for name in wanted}
            self._unrecorded.beyond_draft_len += lookup.num_without_importance(at)
        return self._drafted(work, found.indices, scores, found.stopped, work.start + fed + back), self._draft_loads(
            work, found
        )

    def _tree(
        self, work: DraftWork, session: RecordedSession, position: TracePosition
    ) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        """The recorded tree, which leaves the input tokens alone in the cache."""
        self._drafter_positions[work.session] = self._feed(session, position, work.input_tokens)
        found = self._recorded_tree(work, session)
        self._unrecorded.requested += work.num_inputs + len(found.tokens)
        tops = tuple((token,) for token in found.tokens)
        loads = tree_loads(self._layers, work.start, work.num_inputs, found.levels)
        end = work.start + len(work.input_tokens)
        return DraftOutcome(found.tokens, {}, tops, False, end, parents=found.parents), loads

    def _recorded_tree(self, work: DraftWork, session: RecordedSession) -> RecordedTree:
        """Behind a branch the tree is drafted ahead: the branch is the first path of the tree in flight, and a token.
        The tree in flight is the last one that was drafted, or the one that was drafted ahead of it.
        """
        end = work.start + work.num_inputs
        if not work.branches:
            self._tree_starts[work.session] = end
            return self._lookup.tree(session, end)
        start = self._tree_starts[work.session]
        behind = start + self._path_len(session, start) + 1
        if behind != end:
            self._tree_starts[work.session] = start = behind
        return self._lookup.tree(session, start, ahead=True)

    def _path_len(self, session: RecordedSession, prefix_len: int) -> int:
        tree = self._lookup.tree(session, prefix_len)
        return len(first_path(tree.parents, len(tree.tokens)))

    def _ends_answer(self, work: DraftWork, tokens: Sequence[int]) -> bool:
        return work.stop_text is not None and advance(work.stop_text, tokens, self._token_text)[1] is not None

    def _feed(self, session: RecordedSession, position: TracePosition, tokens: tuple[int, ...]) -> TracePosition:
        position, off_path = self._lookup.advance(session, position, tokens)
        self._unrecorded.off_path += off_path
        return position

    def _draft_loads(self, work: DraftWork, draft: RecordedDraft) -> tuple[ForwardLoad, ...]:
        if not work.stop_rule.max_tokens:
            return self._load_counter.prefill(work.session, work.start, len(work.input_tokens))
        return self._load_counter.draft(
            work.session, work.start, len(work.input_tokens), self._lookup.exit_layers(draft.pass_indices)
        )

    def _branches(
        self, work: DraftWork, session: RecordedSession, position: TracePosition
    ) -> tuple[DraftOutcome, tuple[ForwardLoad, ...]]:
        """One token after each branch. A branch is used only if its guess is right, and then it was recorded: no text
        depends on the substitutes for other branches.
        """
        found = [self._lookup.branch_token(session, position, branch) for branch in work.branches]
        indices = [index for index, _ in found]
        self._unrecorded.lookahead += sum(not recorded for _, recorded in found)
        self._drafter_positions[work.session] = position
        rows = sum(len(branch) for branch in work.branches)
        loads = self._load_counter.branch(work.session, work.start, rows, self._lookup.exit_layers(indices))
        return self._drafted(work, indices, self._scores(work, indices), False, work.start), loads

    def _scores(self, work: DraftWork, indices: list[int]) -> dict[str, tuple[float, ...]]:
        return {
            name: self._lookup.scores(name, indices) for name in work.requested_scores if name not in IMPORTANCE_SCORES
        }

    def _drafted(
        self, work: DraftWork, indices: list[int], scores: dict[str, tuple[float, ...]], stopped: bool, cached: int
    ) -> DraftOutcome:
        lookup, n = self._lookup, len(indices) if work.full_draft_probs else 0
        probs = tuple(TensorRef(f"odds/{work.session}/{next(self._serial)}", 0) for _ in range(n))
        depths = tuple(depth / self._layers for depth in lookup.exit_layers(indices)) if work.early_exit else ()
        return DraftOutcome(
            lookup.tokens(indices), scores, lookup.top_candidates(indices), stopped, cached, probs, (0,) * n, depths
        )

    def _run_slice(self, seq: SequenceSlice, work: ForwardWork, out: str) -> SliceOutcome:
        span = work.span
        if seq.rule == "sample":
            raise ValueError(f"session {seq.session!r} samples, which a trace does not record")
        if span.embedding:
            if len(seq.tokens) != seq.num_tokens:
                raise ValueError(
                    f"session {seq.session!r} has {seq.num_tokens} rows but {len(seq.tokens)} tokens to embed"
                )
            check_prompt(self._session(seq.session), seq.start, seq.tokens)
        if span.start_layer < span.end_layer:
            self._extend_cache(seq, span)
        if not span.lm_head:
            if not out:
                return _EMPTY_RESULT
            sent = seq.num_tokens if out == "all" else seq.num_drafts + 1
            return SliceOutcome(None, TensorRef(f"hidden/{span.end_layer}/{seq.session}/{next(self._serial)}", sent))
        if not seq.rule:
            return _EMPTY_RESULT
        verdict = self._verdict(seq, span)
        return SliceOutcome(
            self._with_proposal(seq, verdict) if MEDUSA_TREE in work.requested_outputs else verdict, None
        )

    def _extend_cache(self, seq: SequenceSlice, span: Span) -> None:
        cached = self._cached_tokens.get(
            (seq.session, span.start_layer), 0
        )  # a tree's, which its keep cuts to `start`, too
        if cached < seq.start:
            raise CacheHoleError(f"session {seq.session!r} begins at {seq.start}, but {cached} tokens are cached")
        self._cached_tokens[seq.session, span.start_layer] = seq.start + seq.num_tokens

    def _verdict(self, seq: SequenceSlice, span: Span) -> Verdict:
        session, at = self._session(seq.session), seq.start + seq.num_tokens - seq.num_drafts
        if span.embedding:
            plain = seq.tokens[: seq.num_tokens - seq.num_drafts]
            if session.token_ids[seq.start : at] != plain:
                self._unrecorded.off_path += _count_differences(session.token_ids[seq.start : at], plain)
        self._unrecorded.requested += seq.num_tokens
        drafts = seq.tokens[len(seq.tokens) - seq.num_drafts :]
        if seq.parents is not None:
            return self._lookup.tree_verdict(session, at, drafts, seq.parents)
        return self._lookup.verdict(session, at, drafts)

    def _with_proposal(self, seq: SequenceSlice, verdict: Verdict) -> Verdict:
        """The verdict with the tree that the target's heads propose after it."""
        if self._medusa is None:
            raise ValueError(f"session {seq.session!r} needs heads that draft, and the trace has none")
        at = seq.start + seq.num_tokens - seq.num_drafts + verdict.accepted
        tokens = self._lookup.proposal(self._session(seq.session), at)
        return replace(verdict, next_tree=DraftTree(tokens, self._medusa.parents))


def _truncated(position: TracePosition, start: int, session: str) -> TracePosition:
    base, length = position
    if length < start:
        raise CacheHoleError(f"session {session!r} begins at token {start}, but only {length} tokens are cached")
    return min(base, start), start


def _count_differences(recorded: tuple[int, ...], tokens: tuple[int, ...]) -> int:
    return sum(a != b for a, b in zip(recorded, tokens, strict=False)) + max(0, len(tokens) - len(recorded))
