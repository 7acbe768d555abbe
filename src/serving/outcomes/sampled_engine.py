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

from serving.core.keyed_random import course, key, luck_at
from serving.core.scores import IMPORTANCE
from serving.hardware.estimator import forward_load
from serving.hardware.latency import Load
from serving.learned.medusa import Medusa
from serving.messages import HEADS, Blob, Drafted, Exit, Forward, Generate, Outcome, Result, Rows, Span, Stop, Verdict
from serving.outcomes.loads import DraftLoads, counting, in_one

_BITS = 17
"""One draw of 51 bits decides three positions, each to 1 in 131,072."""
_ONE, _ALL = (1 << _BITS) - 1, 1 << 3 * _BITS


@dataclass(frozen=True)
class Chances:
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
    def limits(self) -> tuple[int, int, int]:
        """What a draw of 17 bits has to stay below: after a wrong one, after a right one, at the first position."""
        return tuple(round(p * (1 << _BITS)) for p in (self.after_wrong, self.after_right, self.first))  # type: ignore[return-value]


class Rights:
    """One session's luck: a bit per position of its answer, drawn as far as somebody asked."""

    __slots__ = ("_course", "_last", "_right", "known", "prompt", "stream")

    def __init__(self, seed: int, name: str, prompt: int) -> None:
        self.prompt, self.stream = prompt, key(seed, name)
        self._course = course(self.stream, "accept")
        self.known = self._right = 0
        self._last = 2

    def run(self, at: int, cap: int, limits: tuple[int, int, int]) -> int:
        """How many of the `cap` drafts behind `at` tokens are right before the first wrong one."""
        offset = at - self.prompt
        if offset + cap > self.known:
            self._draw(offset + cap, limits)
        wrong = ~(self._right >> offset)
        return min(cap, (wrong & -wrong).bit_length() - 1)

    def before(self, at: int) -> int:
        """Was the position before `at` right? At the first one, yes."""
        offset = at - self.prompt
        return self._right >> (offset - 1) & 1 if offset > 0 else 1

    def _draw(self, upto: int, limits: tuple[int, int, int]) -> None:
        last, known, right = self._last, self.known, self._right
        while known < upto:
            bits = int(luck_at(self._course, known // 3) * _ALL)
            first = (bits & _ONE) < limits[last]
            second = (bits >> _BITS & _ONE) < limits[first]
            last = (bits >> 2 * _BITS) < limits[second]
            right |= (first + 2 * second + 4 * last) << known
            known += 3
        self._last, self.known, self._right = last, known, right


PER_POSITION = 4
_SILENT = Result(None, None)


class Scored(Protocol):
    """Scores and candidates for drafts that luck has decided."""

    def score(self, rights: Rights, at: int, i: int, run: int, name: str) -> float:
        """Of draft i behind `at` tokens, where the first `run` are right."""
        ...

    def rank(self, rights: Rights, at: int, i: int, run: int) -> int:
        """Where the target's token is among the drafter's three candidates for draft i; 3: nowhere."""
        ...

    def layers(self, rights: Rights, at: int, i: int, run: int) -> int:
        """After how many layers draft i is read off, where the drafter leaves early."""
        ...

    def importance(self, rights: Rights, at: int, n: int) -> tuple[float, ...]: ...

    def stem(self, rights: Rights, at: int) -> int:
        """The last candidate that is right of the tree which the target's heads propose beside token `at`; -1: none."""
        ...


class Drawn:
    """One model of a pair that was never run; the drafter by `Generate`, the target by `Forward`.

    `prompts` is how many tokens each session's prompt has; `ranked` asks for the drafter's candidates, or its whole
    distributions, which only some policies look at; `rule` is where it leaves early. Caches are not kept, so not
    checked.
    """

    def __init__(
        self, layers: int, prompts: Mapping[str, int], chances: Chances, scored: Scored, seed: int, ranked: bool,
        rule: Exit | None = None, medusa: Medusa | None = None,
    ) -> None:  # fmt: skip
        self._medusa = medusa
        self._prompts, self._limits, self._scored, self._seed = prompts, chances.limits, scored, seed
        self._layers, self._ranked, self._rule = layers, ranked, rule
        self._sessions: dict[str, Rights] = {}
        self._loads, self._counting = DraftLoads(layers), counting(layers, rule)
        self._drafts: dict[tuple[int, int, int, int], tuple[Drafted, tuple[Load, ...]]] = {}
        self._results: dict[tuple[int, tuple[int, ...]], Result] = {}
        self._serial = count(1)

    def execute(self, work: Generate | Forward) -> tuple[Outcome, tuple[Load, ...]]:
        """Draws the outcome. Raises ValueError for another rule of early exit, which nobody fitted."""
        if isinstance(work, Forward):
            span, rule = work.span, self._verdict
            if span.head:
                results = tuple([rule(rows) if rows.rule else _SILENT for rows in work.rows])
                if HEADS in work.probes:
                    results = tuple(map(self._proposed, work.rows, results))
            else:
                results = tuple([self._hidden(rows, span, out) for rows, out in zip(work.rows, work.out, strict=True)])
            return results, (forward_load(work),)
        stop, fed = work.stop, len(work.feed)
        if not stop.cap or work.branches or work.probes or stop.score or work.sampling or work.exit or self._ranked:
            return self._careful(work)
        at, cap = work.start + fed, stop.cap
        rights = self._sessions.get(work.session) or self._rights(work.session)
        run = rights.run(at, cap, self._limits)
        return self._drafts.get((at, fed, cap, run)) or self._made(at, fed, cap, run)

    def drop(self, session: str, first: int | None) -> None:
        """Frees a session's luck: it can be drawn again."""
        if first is None:
            self._sessions.pop(session, None)
            self._counting.drop(session)

    def _rights(self, session: str) -> Rights:
        rights = self._sessions.get(session)
        if rights is None:
            rights = self._sessions[session] = Rights(self._seed, session, self._prompts[session])
        return rights

    def _made(self, at: int, fed: int, cap: int, run: int) -> tuple[Drafted, tuple[Load, ...]]:
        """A draft of which all is known: the first `run` tokens right, the rest wrong."""
        tokens = tuple(PER_POSITION * (at + i) + (i >= run) for i in range(cap))
        drafted = Drafted(tokens, {}, tuple(_tops(token, 3) for token in tokens), False, at + cap - 1)
        made = self._drafts[at, fed, cap, run] = drafted, (in_one(self._loads.of(at - fed, fed, cap)),)
        return made

    def _careful(self, work: Generate) -> tuple[Drafted, tuple[Load, ...]]:
        """Drafts with scores, stop rules, exits, distributions or branches."""
        if work.exit != self._rule:
            raise ValueError(
                f"session {work.session!r} leaves layers early by a rule that this model of acceptance does not know"
            )
        if work.branches:
            return self._branches(work)
        rights, at, stop = self._rights(work.session), work.start + len(work.feed), work.stop
        run = rights.run(at, stop.cap, self._limits) if stop.cap else 0
        fell = self._fell(rights, at, run, stop)
        passes, stopped = min(stop.cap, fell + 1), fell < stop.cap
        n = passes - (stopped and not stop.keep and fell >= stop.least)
        tokens, scores, tops = self._described(work, rights, at, n, run)
        if IMPORTANCE in work.probes:
            first = at - work.again + (not stop.cap) if work.again else at  # where nothing is written, one is not fed
            scores[IMPORTANCE] = self._scored.importance(rights, first, work.again + n)
        depths = self._depths(rights, at, passes, run)
        odds, kept = self._odds(work, n)
        drafted = Drafted(tokens, scores, tops, stopped, at + max(0, passes - 1), odds, kept, self._shares(depths[:n]))
        if not stop.cap:
            return drafted, self._counting.fill(work.session, work.start, len(work.feed))
        return drafted, self._counting.write(work.session, work.start, len(work.feed), depths)

    def _depths(self, rights: Rights, at: int, n: int, run: int) -> Sequence[int]:
        """After how many layers each of `n` drafts is read off; where none leaves early only their number counts."""
        return [self._scored.layers(rights, at, i, run) for i in range(n)] if self._rule else (self._layers,) * n

    def _shares(self, depths: Sequence[int]) -> tuple[float, ...]:
        return tuple(depth / self._layers for depth in depths) if self._rule else ()

    def _odds(self, work: Generate, n: int) -> tuple[tuple[Blob, ...], tuple[int, ...]]:
        """Distributions where they are wanted: of as many tokens as top-k leaves, else of all."""
        if not (work.sampling or work.whole):
            return (), ()
        kept = work.sampling.top_k if work.sampling and not work.whole else 0
        return tuple(Blob(f"odds/{work.session}/{next(self._serial)}", 0) for _ in range(n)), (kept,) * n

    def _fell(self, rights: Rights, at: int, run: int, stop: Stop) -> int:
        """The first draft whose score falls below the stop rule's threshold, or the cap."""
        if not stop.score:
            return stop.cap
        score = self._scored.score
        return next((i for i in range(stop.cap) if score(rights, at, i, run, stop.score) < stop.below), stop.cap)

    def _described(
        self, work: Generate, rights: Rights, at: int, n: int, run: int
    ) -> tuple[tuple[int, ...], dict[str, tuple[float, ...]], tuple[tuple[int, ...], ...]]:
        scored = self._scored
        tokens = tuple(PER_POSITION * (at + i) + (i >= run) for i in range(n))
        scores = {
            name: tuple(scored.score(rights, at, i, run, name) for i in range(n))
            for name in work.probes
            if name != IMPORTANCE
        }
        return tokens, scores, tuple(_tops(t, scored.rank(rights, at, i, run)) for i, t in enumerate(tokens))

    def _branches(self, work: Generate) -> tuple[Drafted, tuple[Load, ...]]:
        """One token after each branch, right or wrong by its position; what follows a wrong guess is never seen."""
        rights, found, depths = self._rights(work.session), [], list[int]()
        for branch in work.branches:
            at = work.start + len(branch)
            run = rights.run(at, 1, self._limits)
            found.append(self._described(work, rights, at, 1, run))
            depths += self._depths(rights, at, 1, run)
        scores = {name: tuple(each[name][0] for _, each, _ in found) for name in work.probes if name != IMPORTANCE}
        tokens, tops = tuple(t[0] for t, _, _ in found), tuple(t[0] for _, _, t in found)
        odds, kept = self._odds(work, len(found))
        rows = sum(len(branch) for branch in work.branches)
        loads = self._counting.branch(work.session, work.start, rows, depths)
        return Drafted(tokens, scores, tops, False, work.start, odds, kept, self._shares(depths)), loads

    def _verdict(self, rows: Rows) -> Result:
        check = rows.check
        at, drafts = rows.start + rows.n - check, rows.tokens[-check:] if check else ()
        known = self._results.get((at, drafts)) if rows.parents is None else None
        return known or self._judged(rows, at, drafts)

    def _judged(self, rows: Rows, at: int, drafts: tuple[int, ...]) -> Result:
        if rows.parents is not None:
            return Result(_tree(at, drafts, rows.parents), None)
        accepted = 0
        for token in drafts:
            if token != PER_POSITION * (at + accepted):
                if token // PER_POSITION != at + accepted:
                    raise RuntimeError(f"session {rows.session!r}: {token} is no draft for token {at + accepted}")
                break
            accepted += 1
        result = self._results[at, drafts] = Result(Verdict(accepted, PER_POSITION * (at + accepted)), None)
        return result

    def _proposed(self, rows: Rows, result: Result) -> Result:
        """A verdict with the tree that the target's heads grow behind it."""
        verdict, medusa = result.verdict, self._medusa
        if verdict is None or medusa is None:
            return result
        at = verdict.token // PER_POSITION
        node = self._scored.stem(self._rights(rows.session), at)
        right = set[int]()
        while node >= 0:
            right.add(node)
            node = medusa.parents[node]
        tokens = tuple(PER_POSITION * (at + len(ranks)) + (i not in right) for i, ranks in enumerate(medusa.tree))
        return Result(replace(verdict, proposal=(tokens, medusa.parents)), None)

    def _hidden(self, rows: Rows, span: Span, out: str) -> Result:
        if not out:
            return _SILENT
        sent = rows.n if out == "all" else rows.check + 1
        return Result(None, Blob(f"hidden/{span.last}/{rows.session}/{next(self._serial)}", sent))


def _tree(at: int, drafts: Sequence[int], parents: Sequence[int]) -> Verdict:
    """The path of right candidates, which is where they say they belong."""
    path: list[int] = []
    while True:
        target, here = PER_POSITION * (at + len(path)), path[-1] if path else -1
        child = next((i for i, p in enumerate(parents) if p == here and drafts[i] == target), None)
        if child is None:
            return Verdict(len(path), target, tuple(path))
        path.append(child)


def _tops(token: int, rank: int) -> tuple[int, ...]:
    """The written token, and two others; `rank` is the place of the target's among them."""
    first = token - token % PER_POSITION
    others = [first + 2, first + 3]
    if token != first and rank in (1, 2):
        others[rank - 1] = first
    return (token, *others)
