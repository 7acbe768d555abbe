"""Reads a trace's tables: what follows a place in a session."""

from collections.abc import Sequence
from typing import NamedTuple

from serving.core.scores import SCORES, UNTRAINED, Scorers
from serving.messages import Stop, Verdict
from serving.outcomes.trace import TOPS, Recorded, Tables, triangle

Place = tuple[int, int]
"""(base, length): the text up to `base`, then the recorded continuation from there, `length` tokens in all. `base` is
as large as it can be.
"""


class Found(NamedTuple):
    """A draft that was looked up; `at` are its tokens' indices in the flat tables."""

    tokens: tuple[int, ...]
    at: list[int]
    stopped: bool
    read: list[int]
    """The same of the tokens that were read off, one a forward pass: of the one that a stop rule dropped, too."""
    deep: int
    """How many tokens lay beyond the record."""


class Lookup:
    """Finds drafts, verdicts and scores in a trace by place; it holds no state of any session."""

    def __init__(self, tables: Tables, scorers: Scorers = UNTRAINED) -> None:
        self.depth = tables.depth
        self._targets, self._counts = tables.flat("targets"), tables.flat("counts")
        self._drafts, self._tops = tables.flat("drafts"), tables.flat("tops")
        self._attention, self._triangle = tables.flat("attention"), triangle(tables.depth)
        self._depths = tables.flat("depths")
        self._proposals, self._tree = tables.flat("proposals"), int(tables.proposals.shape[1])
        self._scores = {name: tables.flat_score(name) for name in SCORES}
        for name, scorer in scorers.items():
            self._scores[name] = tables.flat_trained(scorer) if scorer.reads == "scores" else tables.flat("routes")

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
            on = self._step(session, place, token)
            strange += on is None
            place = on or (place[1] + 1, place[1] + 1)
        return place, strange

    def left(self, session: Recorded, place: Place, tokens: Sequence[int]) -> tuple[Place, int | None]:
        """The place before the first of these tokens that is off all that was recorded, and which of them that is."""
        for i, token in enumerate(tokens):
            on = self._step(session, place, token)
            if on is None:
                return place, i
            place = on
        return place, None

    def behind(self, session: Recorded, place: Place, branch: tuple[int, ...]) -> tuple[int, bool]:
        """Where the token behind a branch is; and is it recorded, or does another stand in for it?"""
        last, off = self.left(session, place, branch)
        if off is None:
            at, deep = self.reach(session, last, 1)
            return at[0], not deep
        aside, rest = (*last, branch[off]), branch[off + 1 :]
        if aside in session.asides:
            row = session.first + session.positions + session.asides.index(aside)
            first = row * self.depth
            if len(rest) < self._counts[row] and tuple(self._drafts[first : first + len(rest)]) == rest:
                return first + len(rest), True
        return self.reach(session, self.fed(session, last, branch[off:])[0], 1)[0][0], False

    def draft(self, session: Recorded, place: Place, stop: Stop, ends: tuple[int, ...]) -> Found:
        """What the drafter writes from here until the stop rule says enough."""
        if not stop.cap:
            return Found((), [], False, [], 0)
        reach, deep = self.reach(session, place, stop.cap)
        scores = self._scores[stop.score] if stop.score else None
        tokens: list[int] = []
        passes, stopped = 0, False
        for i in reach:
            passes += 1
            stopped = scores is not None and scores[i] < stop.below
            if not stopped or stop.keep or len(tokens) < stop.least:
                tokens.append(self._drafts[i])
            if stopped or tokens[-1] in ends:
                break
        deep = max(0, deep - (len(reach) - passes))
        return Found(tuple(tokens), reach[: len(tokens)], stopped, reach[:passes], deep)

    def verdict(self, session: Recorded, at: int, drafts: Sequence[int]) -> Verdict:
        """The target's choices against drafts behind `at` agreed tokens."""
        first, last = session.first + at - session.prompt_tokens, session.first + session.positions - 1
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == self._targets[min(first + accepted, last)]:
            accepted += 1
        return Verdict(accepted, self._targets[min(first + accepted, last)])

    def tree(self, session: Recorded, at: int, drafts: Sequence[int], parents: Sequence[int]) -> Verdict:
        """The target's choices down a tree of drafts behind `at` agreed tokens."""
        first, last = session.first + at - session.prompt_tokens, session.first + session.positions - 1
        path: list[int] = []
        while True:
            target = self._targets[min(first + len(path), last)]
            here = path[-1] if path else -1
            child = next((i for i, p in enumerate(parents) if p == here and drafts[i] == target), None)
            if child is None:
                return Verdict(len(path), target, tuple(path))
            path.append(child)

    def proposal(self, session: Recorded, at: int) -> tuple[int, ...]:
        """What the target's heads propose beside the token that it writes behind `at` agreed ones."""
        row, width = min(session.first + at - session.prompt_tokens, session.first + session.positions - 1), self._tree
        return tuple(self._proposals[row * width : (row + 1) * width])

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

    def depths(self, at: Sequence[int]) -> list[int]:
        """After how many layers each token was read off."""
        return [self._depths[i] for i in at]

    def importance(self, at: Sequence[int], fed: bool = False) -> tuple[float, ...]:
        """Column means of attention among the drafts, as `serving.engines.torch.importance` takes them; a single draft
        that was `fed` is seen by its own row, else by the one that wrote it.
        """
        if not at:
            return ()
        row, begin = divmod(at[0], self.depth)
        n = min(len(at), self.depth - begin)
        if fed and len(at) == 1 and begin + 1 < self.depth:
            begin += 1
        values = column_means(self._attention[row * self._triangle : (row + 1) * self._triangle], begin, n)
        return (*values, *values[-1:] * (len(at) - n))

    def beyond(self, at: Sequence[int]) -> int:
        """Tokens of a draft whose importance was not recorded, because it is longer than the record is deep."""
        return max(0, len(at) - self.depth + at[0] % self.depth) if at else 0

    def _row(self, session: Recorded, position: int) -> int:
        """The row of a position, or the nearest one that there is."""
        return session.first + min(max(0, position - session.prompt_tokens), session.positions - 1)

    def _step(self, session: Recorded, place: Place, token: int) -> Place | None:
        """The place behind this token; None where neither the text nor a continuation of it goes on so."""
        base, length = place
        if base == length and length < len(session.path) and session.path[length] == token:
            return length + 1, length + 1
        return (base, length + 1) if self._continues(session, base, length, token) else None

    def _continues(self, session: Recorded, base: int, length: int, token: int) -> bool:
        row, offset = self._row(session, base), length - base
        return bool(offset < self._counts[row] and self._drafts[row * self.depth + offset] == token)

    def reach(self, session: Recorded, place: Place, n: int) -> tuple[list[int], int]:
        """Indices of the next `n` tokens in the flat tables; how many of the last ones only stand in for what is not
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
