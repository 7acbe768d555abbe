"""Reads a trace's tables: the drafts, verdicts and scores that follow a position in a session."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from serving.core.draft_tree import accept_greedily
from serving.core.importance import NUM_PLANES, draft_importance, importance_plane
from serving.core.scores import IMPORTANCE_SCORES, NO_SCORERS, NUM_TOP_CANDIDATES, Scorers
from serving.messages import DraftParents, DraftStopRule, Verdict
from serving.outcomes.trace import NO_NODE, RecordedSession, TraceTables, triangle_size

TracePosition = tuple[int, int]
"""(base, length): the text up to `base`, then the recorded continuation from there, `length` tokens in all; with the
largest possible `base`.
"""


class RecordedDraft(NamedTuple):
    """A draft that was looked up; `indices` are its tokens' indices in the flat tables."""

    tokens: tuple[int, ...]
    indices: list[int]
    stopped: bool
    pass_indices: list[int]
    """Indices of all decoded tokens, one per forward pass, including one that a stop rule dropped."""
    num_unrecorded: int
    """The number of tokens beyond the record."""


class RecordedTree(NamedTuple):
    """A tree of drafts that was looked up; `levels`: nodes that the drafter runs for each level after the first."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    levels: tuple[int, ...]


class TraceLookup:
    """Finds drafts, verdicts and scores in a trace by position; it has no state of sessions."""

    def __init__(self, tables: TraceTables, scorers: Scorers = NO_SCORERS) -> None:
        self.max_draft_len = tables.max_draft_len
        self._targets, self._continuation_lens = tables.flat("targets"), tables.flat("continuation_lens")
        self._drafts, self._top_candidates = tables.flat("drafts"), tables.flat("top_candidates")
        self._attention, self._triangle_size = tables.flat("attention"), triangle_size(tables.max_draft_len)
        self._exit_layers = tables.flat("exit_layers")
        self._trees, self._tree_levels = tables.trees, tables.tree_levels
        self._proposals, self._tree_size = tables.flat("proposals"), int(tables.proposals.shape[1])
        self._scores = tables.flat_scores(scorers)

    def advance(
        self, session: RecordedSession, position: TracePosition, tokens: tuple[int, ...]
    ) -> tuple[TracePosition, int]:
        """The position after these tokens, and how many of them were not recorded.

        Raises ValueError for a prompt that is not the session's.
        """
        base, length = position
        end = length + len(tokens)
        if base == length and session.token_ids[length:end] == tokens:
            return (end, end), 0
        check_prompt(session, length, tokens)
        off_path = 0
        for token in tokens:
            following = self._step(session, position, token)
            off_path += following is None
            position = following or (position[1] + 1, position[1] + 1)
        return position, off_path

    def find_divergence(
        self, session: RecordedSession, position: TracePosition, tokens: Sequence[int]
    ) -> tuple[TracePosition, int | None]:
        """The position before the first token that was not recorded, and the token's index; None: all were."""
        for i, token in enumerate(tokens):
            following = self._step(session, position, token)
            if following is None:
                return position, i
            position = following
        return position, None

    def branch_token(
        self, session: RecordedSession, position: TracePosition, branch: tuple[int, ...]
    ) -> tuple[int, bool]:
        """The index of the token after a branch; and False if it is a substitute, that of the same position."""
        last, off = self.find_divergence(session, position, branch)
        if off is None:
            indices, unrecorded = self.next_indices(session, last, 1)
            return indices[0], not unrecorded
        recorded, rest = (*last, branch[off]), branch[off + 1 :]
        if recorded in session.lookahead_branches:
            row = session.first_row + session.num_positions + session.lookahead_branches.index(recorded)
            first = row * self.max_draft_len
            if len(rest) < self._continuation_lens[row] and tuple(self._drafts[first : first + len(rest)]) == rest:
                return first + len(rest), True
        return self.next_indices(session, self.advance(session, last, branch[off:])[0], 1)[0][0], False

    def draft(
        self,
        session: RecordedSession,
        position: TracePosition,
        stop: DraftStopRule,
        stop_tokens: tuple[int, ...],
        ends_answer: Callable[[Sequence[int]], bool] = lambda _: False,
    ) -> RecordedDraft:
        """The drafter's tokens from here until the stop rule ends the draft, or its tokens end the answer."""
        if not stop.max_tokens:
            return RecordedDraft((), [], False, [], 0)
        indices, unrecorded = self.next_indices(session, position, stop.max_tokens)
        scores = self._scores[stop.score] if stop.score else None
        tokens: list[int] = []
        passes, stopped, level = 0, False, 1.0
        for i in indices:
            passes += 1
            if scores is not None:
                level = stop.level(level, scores[i])
                stopped = level < stop.threshold
            if not stopped or stop.keep_last or len(tokens) < stop.min_tokens:
                tokens.append(self._drafts[i])
            if stopped or tokens[-1] in stop_tokens or ends_answer(tokens):
                break
        unrecorded = max(0, unrecorded - (len(indices) - passes))
        return RecordedDraft(tuple(tokens), indices[: len(tokens)], stopped, indices[:passes], unrecorded)

    def verdict(self, session: RecordedSession, prefix_len: int, drafts: Sequence[int]) -> Verdict:
        """The verdict on drafts after `prefix_len` agreed tokens."""
        first, last = (
            session.first_row + prefix_len - session.prompt_tokens,
            session.first_row + session.num_positions - 1,
        )
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == self._targets[min(first + accepted, last)]:
            accepted += 1
        return Verdict(accepted, self._targets[min(first + accepted, last)])

    def tree_verdict(
        self, session: RecordedSession, prefix_len: int, drafts: Sequence[int], parents: DraftParents
    ) -> Verdict:
        """The verdict on a tree of drafts after `prefix_len` agreed tokens."""
        first, last = (
            session.first_row + prefix_len - session.prompt_tokens,
            session.first_row + session.num_positions - 1,
        )
        return accept_greedily(drafts, parents, lambda path: self._targets[min(first + len(path), last)])

    def proposal(self, session: RecordedSession, prefix_len: int) -> tuple[int, ...]:
        """The tree that the target's heads propose with the token after `prefix_len` agreed ones."""
        row, width = self._row(session, prefix_len), self._tree_size
        return tuple(self._proposals[row * width : (row + 1) * width])

    def tree(self, session: RecordedSession, prefix_len: int, ahead: bool = False) -> RecordedTree:
        """The tree that the drafter grows after `prefix_len` tokens of the text; `ahead`: behind the first path of that
        tree and its own next token.
        """
        row = self._row(session, prefix_len)
        nodes = [node for node in self._trees[row, int(ahead)].tolist() if node[1] != NO_NODE]
        levels = tuple([width for width in self._tree_levels[row, int(ahead)].tolist() if width])
        return RecordedTree(tuple([token for token, _ in nodes]), tuple([parent for _, parent in nodes]), levels)

    def tokens(self, indices: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._drafts[i] for i in indices)

    def top_candidates(self, indices: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(self._top_candidates[NUM_TOP_CANDIDATES * i : NUM_TOP_CANDIDATES * i + NUM_TOP_CANDIDATES])
            for i in indices
        )

    def scores(self, name: str, indices: Sequence[int]) -> tuple[float, ...]:
        """Raises ValueError for a score that was not recorded."""
        if name not in self._scores:
            raise ValueError(
                f"score {name!r} is not in the trace; it has {', '.join((*self._scores, *IMPORTANCE_SCORES))}"
            )
        table = self._scores[name]
        return tuple(table[i] for i in indices)

    def exit_layers(self, indices: Sequence[int]) -> list[int]:
        return [self._exit_layers[i] for i in indices]

    def importance(self, indices: Sequence[int], name: str, fed: bool = False) -> tuple[float, ...]:
        """A score of importance of a draft, as `serving.engines.torch.draft` computes it. The attention of a single
        draft comes from its own row if it was `fed` back, else from the row that wrote it.
        """
        if not indices:
            return ()
        row, begin = divmod(indices[0], self.max_draft_len)
        n = min(len(indices), self.max_draft_len - begin)
        if fed and len(indices) == 1 and begin + 1 < self.max_draft_len:
            begin += 1
        first = (NUM_PLANES * row + importance_plane(name)) * self._triangle_size
        values = draft_importance(
            attention_rows(self._attention[first : first + self._triangle_size], begin, n), n, name
        )
        return (*values, *values[-1:] * (len(indices) - n))

    def num_without_importance(self, indices: Sequence[int]) -> int:
        """The number of a draft's tokens beyond the recorded length, which have no recorded importance."""
        return max(0, len(indices) - self.max_draft_len + indices[0] % self.max_draft_len) if indices else 0

    def _row(self, session: RecordedSession, position: int) -> int:
        """The row of a position, or the nearest row."""
        return session.first_row + min(max(0, position - session.prompt_tokens), session.num_positions - 1)

    def _step(self, session: RecordedSession, position: TracePosition, token: int) -> TracePosition | None:
        """The position after this token; None if neither the text nor its continuation has it next."""
        base, length = position
        if base == length and length < len(session.token_ids) and session.token_ids[length] == token:
            return length + 1, length + 1
        return (base, length + 1) if self._continues(session, base, length, token) else None

    def _continues(self, session: RecordedSession, base: int, length: int, token: int) -> bool:
        row, offset = self._row(session, base), length - base
        return bool(offset < self._continuation_lens[row] and self._drafts[row * self.max_draft_len + offset] == token)

    def next_indices(self, session: RecordedSession, position: TracePosition, n: int) -> tuple[list[int], int]:
        """Indices of the next `n` tokens in the flat tables, and how many of the last ones are substitutes, because a
        wrong continuation was asked for beyond its recorded length.
        """
        base, offset = position[0], position[1] - position[0]
        indices: list[int] = []
        known = n
        while True:
            row = self._row(session, base)
            begin, count = row * self.max_draft_len, self._continuation_lens[row]
            indices += range(begin + offset, begin + min(count, offset + n - len(indices)))
            if len(indices) == n:
                return indices, n - min(known, n)
            if session.token_ids[base : base + count] != tuple(self._drafts[begin : begin + count]):
                known = min(known, len(indices))
            base, offset = base + count, 0


def check_prompt(session: RecordedSession, start: int, tokens: tuple[int, ...]) -> None:
    """Raises ValueError if tokens after the first `start` ones contradict the session's prompt."""
    prompt = session.token_ids[start : session.prompt_tokens]
    if prompt[: len(tokens)] != tokens[: len(prompt)]:
        raise ValueError(
            f"tokens {start} to {start + len(tokens) - 1} are not those of the prompt recorded as {session.name}; "
            "the count of cached tokens is wrong"
        )


def attention_rows(attention: Sequence[float], begin: int, n: int) -> list[list[float]]:
    """The attention among the draft tokens begin..begin+n-1 of the continuation, from one row of one plane's table."""
    if n == 1:
        return [[attention[_triangle_index(begin - 1, begin - 1)] if begin else attention[0]]]
    last = begin + n - 1
    return [[attention[_triangle_index(i, column)] for column in range(begin, i + 1)] for i in range(begin, last)]


def _triangle_index(row: int, column: int) -> int:
    return 1 + row * (row + 1) // 2 + column
