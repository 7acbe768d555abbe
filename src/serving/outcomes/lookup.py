"""Reads a trace's tables: what follows a place in a session."""

from collections.abc import Sequence
from typing import NamedTuple

from serving.messages import Stop, Verdict
from serving.outcomes.trace import TOPS, Recorded, Tables, triangle
from serving.scores import SCORES

Place = tuple[int, int]
"""(base, length): the text up to `base`, then the recorded continuation from there, `length` tokens in all. `base` is
as large as it can be.
"""


class Found(NamedTuple):
    """A draft that was looked up; `at` are its tokens' places in the flat tables."""

    tokens: tuple[int, ...]
    at: list[int]
    stopped: bool
    passes: int
    """Forward passes of the drafter; the first one eats the feed, each other one a draft."""
    deep: int
    """How many tokens lay beyond the record."""


class Lookup:
    """Finds drafts, verdicts and scores in a trace by place; it holds no state of any session."""

    def __init__(self, tables: Tables) -> None:
        self.depth = tables.depth
        self._targets, self._counts = tables.flat("targets"), tables.flat("counts")
        self._drafts, self._tops = tables.flat("drafts"), tables.flat("tops")
        self._attention, self._triangle = tables.flat("attention"), triangle(tables.depth)
        self._scores = {name: tables.flat_score(name) for name in SCORES}

    def fed(self, session: Recorded, place: Place, tokens: tuple[int, ...]) -> tuple[Place, int]:
        """The place after these tokens, and how many of them are off all that was recorded.

        Raises ValueError for a prompt that is not the session's.
        """
        base, length = place
        end = length + len(tokens)
        if base == length and session.path[length:end] == tokens:
            return (end, end), 0
        check_prompt(session, length, tokens)
        strange = 0
        for token in tokens:
            if base == length and length < len(session.path) and session.path[length] == token:
                base = length = length + 1
            elif self._continues(session, base, length, token):
                length += 1
            else:
                base = length = length + 1
                strange += 1
        return (base, length), strange

    def draft(self, session: Recorded, place: Place, stop: Stop, ends: tuple[int, ...]) -> Found:
        """What the drafter writes from here until the stop rule says enough."""
        if not stop.cap:
            return Found((), [], False, 1, 0)
        reach, deep = self._reach(session, place, stop.cap)
        scores = self._scores[stop.score] if stop.score else None
        tokens: list[int] = []
        passes, stopped = 0, False
        for i in reach:
            passes += 1
            stopped = scores is not None and scores[i] < stop.below
            if not stopped or stop.keep:
                tokens.append(self._drafts[i])
            if stopped or tokens[-1] in ends:
                break
        deep = max(0, deep - (len(reach) - passes))
        return Found(tuple(tokens), reach[: len(tokens)], stopped, passes, deep)

    def next(self, session: Recorded, place: Place) -> int:
        """Where the next token is, or what stands in for it."""
        return self._reach(session, place, 1)[0][0]

    def verdict(self, session: Recorded, at: int, drafts: Sequence[int]) -> Verdict:
        """The target's choices against drafts behind `at` agreed tokens."""
        first, last = session.first + at - session.prompt_tokens, session.first + session.rows - 1
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == self._targets[min(first + accepted, last)]:
            accepted += 1
        return Verdict(accepted, self._targets[min(first + accepted, last)])

    def tokens(self, at: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._drafts[i] for i in at)

    def tops(self, at: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self._tops[TOPS * i : TOPS * i + TOPS]) for i in at)

    def scores(self, name: str, at: Sequence[int]) -> tuple[float, ...]:
        """Raises ValueError for a score that was not recorded."""
        if name not in self._scores:
            raise ValueError(f"score {name!r} is not in the trace; it has {', '.join((*self._scores, 'importance'))}")
        table = self._scores[name]
        return tuple(table[i] for i in at)

    def importance(self, at: Sequence[int]) -> tuple[float, ...]:
        """Column means of attention among the drafts, as `serving.engine.importance` takes them."""
        if not at:
            return ()
        row, begin = divmod(at[0], self.depth)
        n = min(len(at), self.depth - begin)
        values = column_means(self._attention[row * self._triangle : (row + 1) * self._triangle], begin, n)
        return (*values, *values[-1:] * (len(at) - n))

    def beyond(self, at: Sequence[int]) -> int:
        """Tokens of a draft whose importance was not recorded, because it is longer than the record is deep."""
        return max(0, len(at) - self.depth + at[0] % self.depth) if at else 0

    def _row(self, session: Recorded, position: int) -> int:
        """The row of a position, or the nearest one that there is."""
        return session.first + min(max(0, position - session.prompt_tokens), session.rows - 1)

    def _continues(self, session: Recorded, base: int, length: int, token: int) -> bool:
        row, offset = self._row(session, base), length - base
        return bool(offset < self._counts[row] and self._drafts[row * self.depth + offset] == token)

    def _reach(self, session: Recorded, place: Place, n: int) -> tuple[list[int], int]:
        """Places of the next `n` tokens in the flat tables; how many of the last ones only stand in for what is not
        known, because a wrong continuation was asked further than it was recorded.
        """
        base, offset = place[0], place[1] - place[0]
        at: list[int] = []
        known = n
        while True:
            row = self._row(session, base)
            begin, count = row * self.depth, self._counts[row]
            at += range(begin + offset, begin + min(count, offset + n - len(at)))
            if len(at) == n:
                return at, n - min(known, n)
            if session.path[base : base + count] != tuple(self._drafts[begin : begin + count]):
                known = min(known, len(at))
            base, offset = base + count, 0


def check_prompt(session: Recorded, start: int, tokens: tuple[int, ...]) -> None:
    """Raises ValueError where tokens behind the first `start` ones contradict the session's prompt."""
    prompt = session.path[start : session.prompt_tokens]
    if prompt[: len(tokens)] != tokens[: len(prompt)]:
        raise ValueError(
            f"tokens {start} to {start + len(tokens) - 1} are not those of the prompt recorded as {session.name}; "
            "somebody lost count of what is cached"
        )


def column_means(attention: Sequence[float], begin: int, n: int) -> tuple[float, ...]:
    """`attention` is one row of the table; the draft is tokens begin..begin+n-1 of the continuation."""
    if n == 1:
        return (attention[_at(begin - 1, begin - 1)] if begin else attention[0],)
    last = begin + n - 1
    means = [
        sum([attention[_at(i, column)] for i in range(column, last)]) / (last - column) for column in range(begin, last)
    ]
    return (*means, sum(means) / len(means))


def _at(fed: int, column: int) -> int:
    return 1 + fed * (fed + 1) // 2 + column
