"""An engine without text: drafts are right or wrong by luck. The hot path of large simulations.

Tokens are numbers that say where they belong: at position p the target writes 4p, a wrong draft is 4p + 1, and 4p + 2
and 4p + 3 are other candidates. So a verdict needs no luck, and a draft that is checked at a place where it was not
written is an error. Everything that a position decides alone is made once and shared by all sessions.
"""

from collections.abc import Mapping
from itertools import count
from typing import Protocol

from serving.latency import Load
from serving.messages import Blob, Drafted, Forward, Generate, Outcome, Result, Rows, Span, Stop, Verdict
from serving.outcomes.loads import DraftLoads, forward_load, in_one
from serving.outcomes.rights import Chances, Rights
from serving.scores import IMPORTANCE

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

    def importance(self, rights: Rights, at: int, n: int) -> tuple[float, ...]: ...


class Drawn:
    """One model of a pair that was never run; the drafter by `Generate`, the target by `Forward`.

    `prompts` is how many tokens each session's prompt has; `ranked` asks for the drafter's candidates, which only those
    who draft ahead look at. Caches are not kept, so not checked.
    """

    def __init__(
        self, layers: int, prompts: Mapping[str, int], chances: Chances, scored: Scored, seed: int, ranked: bool
    ) -> None:
        self._prompts, self._limits, self._scored, self._seed = prompts, chances.limits, scored, seed
        self._ranked = ranked
        self._sessions: dict[str, Rights] = {}
        self._loads = DraftLoads(layers)
        self._drafts: dict[tuple[int, int, int, int], tuple[Drafted, tuple[Load, ...]]] = {}
        self._results: dict[tuple[int, tuple[int, ...]], Result] = {}
        self._serial = count(1)

    def execute(self, work: Generate | Forward) -> tuple[Outcome, tuple[Load, ...]]:
        """Draws the outcome. Raises ValueError for trees and layer-wise early exit, which nobody fitted."""
        if isinstance(work, Forward):
            span, rule = work.span, self._verdict
            if span.head:
                results = tuple([rule(rows) if rows.rule else _SILENT for rows in work.rows])
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
        """Drafts with scores, stop rules, distributions or branches."""
        if work.exit:
            raise ValueError(f"session {work.session!r} exits early in layers, and no model of acceptance knows of it")
        if work.branches:
            return self._branches(work)
        rights, at, stop = self._rights(work.session), work.start + len(work.feed), work.stop
        run = rights.run(at, stop.cap, self._limits) if stop.cap else 0
        fell = self._fell(rights, at, run, stop)
        passes, stopped = min(stop.cap, fell + 1), fell < stop.cap
        n = passes - (stopped and not stop.keep)
        tokens, scores, tops = self._described(work, rights, at, n, run)
        odds = tuple(Blob(f"odds/{work.session}/{next(self._serial)}", 0) for _ in tokens) if work.sampling else ()
        drafted = Drafted(tokens, scores, tops, stopped, at + max(0, passes - 1), odds)
        return drafted, self._loads.of(work.start, len(work.feed), max(1, passes), int(stop.cap > 0))

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
            name: scored.importance(rights, at, n)
            if name == IMPORTANCE
            else tuple(scored.score(rights, at, i, run, name) for i in range(n))
            for name in work.probes
        }
        return tokens, scores, tuple(_tops(t, scored.rank(rights, at, i, run)) for i, t in enumerate(tokens))

    def _branches(self, work: Generate) -> tuple[Drafted, tuple[Load, ...]]:
        """One token after each branch, right or wrong by its position; what follows a wrong guess is never seen."""
        rights, found = self._rights(work.session), []
        for branch in work.branches:
            at = work.start + len(branch)
            found.append(self._described(work, rights, at, 1, rights.run(at, 1, self._limits)))
        scores = {name: tuple(each[name][0] for _, each, _ in found) for name in work.probes}
        tokens, tops = tuple(t[0] for t, _, _ in found), tuple(t[0] for _, _, t in found)
        rows = sum(len(branch) for branch in work.branches)
        return Drafted(tokens, scores, tops, False, work.start), self._loads.of(work.start, rows, 1, len(found))

    def _verdict(self, rows: Rows) -> Result:
        check = rows.check
        at, drafts = rows.start + rows.n - check, rows.tokens[-check:] if check else ()
        known = self._results.get((at, drafts)) if rows.parents is None else None
        return known or self._judged(rows, at, drafts)

    def _judged(self, rows: Rows, at: int, drafts: tuple[int, ...]) -> Result:
        if rows.parents is not None:
            raise ValueError(f"session {rows.session!r} sends a tree, and no model of acceptance knows of trees")
        accepted = 0
        for token in drafts:
            if token != PER_POSITION * (at + accepted):
                if token // PER_POSITION != at + accepted:
                    raise RuntimeError(f"session {rows.session!r}: {token} is no draft for token {at + accepted}")
                break
            accepted += 1
        result = self._results[at, drafts] = Result(Verdict(accepted, PER_POSITION * (at + accepted)), None)
        return result

    def _hidden(self, rows: Rows, span: Span, out: str) -> Result:
        sent = rows.n if out == "all" else rows.check + 1
        return Result(None, Blob(f"hidden/{span.last}/{rows.session}/{next(self._serial)}", sent))


def _tops(token: int, rank: int) -> tuple[int, ...]:
    """The written token, and two others; `rank` is the place of the target's among them."""
    first = token - token % PER_POSITION
    others = [first + 2, first + 3]
    if token != first and rank in (1, 2):
        others[rank - 1] = first
    return (token, *others)
