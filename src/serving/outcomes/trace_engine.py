"""An engine that looks outcomes up in a trace, and counts what the trace cannot know.

The drafter's cache is known by two numbers: it holds the recorded text up to `base`, and then the recorded continuation
from there. A token that is neither is off the path: from there on the position alone decides, as if the text were the
recorded one, and `Unknown` counts it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count

from serving.core.scores import IMPORTANCE, UNTRAINED, Scorers
from serving.hardware.estimator import forward_load
from serving.hardware.latency import Load
from serving.learned.medusa import Medusa
from serving.messages import HEADS, Blob, Drafted, Exit, Forward, Generate, Outcome, Result, Rows, Span, Verdict
from serving.outcomes.loads import counting
from serving.outcomes.lookup import Found, Lookup, Place, check_prompt
from serving.outcomes.trace import Recorded, Trace

_SILENT = Result(None, None)


class HoleError(RuntimeError):
    """Work that begins behind the end of its session's cache."""


@dataclass(slots=True)
class Unknown:
    """What was asked beyond the record."""

    asked: int = 0
    tokens: int = 0
    """Tokens that are neither on the recorded path nor in a recorded continuation of it."""
    deep: int = 0
    """Drafts behind a wrong one, further than was recorded."""
    ahead: int = 0
    """Tokens drafted ahead behind a guess that was not recorded; it is wrong, so that no text depends on them."""

    def notes(self) -> tuple[str, ...]:
        found = []
        if self.tokens + self.deep:
            share = (self.tokens + self.deep) / max(1, self.asked)
            found.append(
                f"{self.tokens} tokens left the recorded path, and {self.deep} drafts were deeper than recorded "
                f"({share:.1%} of the tokens asked about); there the recorded outcome of the same position stood in"
            )
        if self.ahead:
            found.append(
                f"{self.ahead} tokens were drafted ahead on wrong guesses that were not recorded: where these end, and "
                "where they leave early, is that of the recorded text; it moves how long the device is busy, not what "
                "is written"
            )
        return tuple(found)


class Reader:
    """One model of a recorded pair; the drafter, which may leave early by a `rule`, by `Generate`, the target by
    `Forward`.
    """

    def __init__(
        self, trace: Trace, bound: Mapping[str, Recorded], layers: int, unknown: Unknown, rule: Exit | None = None,
        scorers: Scorers = UNTRAINED, medusa: Medusa | None = None,
    ) -> None:  # fmt: skip
        self._medusa = medusa
        self._bound, self._unknown, self._layers, self._rule = bound, unknown, layers, rule
        self._lookup, self._loads = Lookup(trace.tables, scorers), counting(layers, rule)
        self._drafter: dict[str, Place] = {}
        self._cached: dict[tuple[str, int | None], int] = {}
        """The target's cached tokens, by session and first layer."""
        self._serial = count(1)

    def execute(self, work: Generate | Forward) -> tuple[Outcome, tuple[Load, ...]]:
        """Looks the outcome up.

        Raises HoleError for work that begins behind a cache, ValueError for a prompt that is not the session's, and for
        what the trace does not record: sampling, another rule of early exit, heads.
        """
        if isinstance(work, Forward):
            results = tuple(self._rows(rows, work, out) for rows, out in zip(work.rows, work.out, strict=True))
            return results, (forward_load(work),)
        if work.sampling is not None or work.exit != self._rule:
            raise ValueError(
                f"session {work.session!r} samples, or leaves layers early by another rule, which the trace does not "
                "record"
            )
        session, place = self._session(work.session), self._drafter.get(work.session, (0, 0))
        place = _cut(place, work.start, work.session)
        return self._branches(work, session, place) if work.branches else self._continue(work, session, place)

    def drop(self, session: str, first: int | None) -> None:
        """Frees what is known of a cache."""
        if first is None:
            self._drafter.pop(session, None)
            self._loads.drop(session)
        self._cached.pop((session, first), None)

    def _session(self, name: str) -> Recorded:
        try:
            return self._bound[name]
        except KeyError:
            raise ValueError(f"session {name!r} was not among the calls that the trace was opened for") from None

    def _continue(self, work: Generate, session: Recorded, place: Place) -> tuple[Drafted, tuple[Load, ...]]:
        lookup, fed = self._lookup, len(work.feed)
        if work.stop.cap and not fed:
            raise ValueError(f"session {work.session!r} asks for {work.stop.cap} tokens with nothing to feed")
        old = work.again if work.stop.cap else max(0, work.again - 1)  # adopted drafts that are fed
        begun = self._feed(session, place, work.feed[: fed - old])
        place = self._feed(session, begun, work.feed[fed - old :]) if old else begun
        found = lookup.draft(session, place, work.stop, work.ends)
        back = max(0, len(found.read) - 1)  # drafts that are fed back
        self._unknown.asked += fed + len(found.at)
        self._unknown.deep += found.deep
        self._drafter[work.session] = lookup.fed(session, place, found.tokens[:back])[0]
        scores = self._scores(work, found.at)
        if IMPORTANCE in work.probes:
            at = lookup.reach(session, begun, work.again + len(found.at))[0] if work.again else found.at
            scores[IMPORTANCE] = lookup.importance(at, fed=old > 0)
            self._unknown.deep += lookup.beyond(at)
        return self._drafted(work, found.at, scores, found.stopped, work.start + fed + back), self._did(work, found)

    def _feed(self, session: Recorded, place: Place, tokens: tuple[int, ...]) -> Place:
        place, strange = self._lookup.fed(session, place, tokens)
        self._unknown.tokens += strange
        return place

    def _did(self, work: Generate, found: Found) -> tuple[Load, ...]:
        if not work.stop.cap:
            return self._loads.fill(work.session, work.start, len(work.feed))
        return self._loads.write(work.session, work.start, len(work.feed), self._lookup.depths(found.read))

    def _branches(self, work: Generate, session: Recorded, place: Place) -> tuple[Drafted, tuple[Load, ...]]:
        """One token after each branch. A branch lives on only if its guess is what the target wrote, and then it is on
        the path: no text depends on what stands in for another one.
        """
        places = [self._lookup.behind(session, place, branch) for branch in work.branches]
        at = [one for one, _ in places]
        self._unknown.ahead += sum(not recorded for _, recorded in places)
        self._drafter[work.session] = place
        rows = sum(len(branch) for branch in work.branches)
        loads = self._loads.branch(work.session, work.start, rows, self._lookup.depths(at))
        return self._drafted(work, at, self._scores(work, at), False, work.start), loads

    def _scores(self, work: Generate, at: list[int]) -> dict[str, tuple[float, ...]]:
        return {name: self._lookup.scores(name, at) for name in work.probes if name != IMPORTANCE}

    def _drafted(
        self, work: Generate, at: list[int], scores: dict[str, tuple[float, ...]], stopped: bool, cached: int
    ) -> Drafted:
        lookup, n = self._lookup, len(at) if work.whole else 0
        odds = tuple(Blob(f"odds/{work.session}/{next(self._serial)}", 0) for _ in range(n))
        depths = tuple(depth / self._layers for depth in lookup.depths(at)) if work.exit else ()
        return Drafted(lookup.tokens(at), scores, lookup.tops(at), stopped, cached, odds, (0,) * n, depths)

    def _rows(self, rows: Rows, work: Forward, out: str) -> Result:
        span = work.span
        if rows.rule == "sample":
            raise ValueError(f"session {rows.session!r} samples, which a trace does not record")
        if span.embed:
            if len(rows.tokens) != rows.n:
                raise ValueError(f"session {rows.session!r} has {rows.n} rows but {len(rows.tokens)} tokens to embed")
            check_prompt(self._session(rows.session), rows.start, rows.tokens)
        if span.first < span.last:
            self._grow(rows, span)
        if not span.head:
            if not out:
                return _SILENT
            sent = rows.n if out == "all" else rows.check + 1
            return Result(None, Blob(f"hidden/{span.last}/{rows.session}/{next(self._serial)}", sent))
        if not rows.rule:
            return _SILENT
        verdict = self._verdict(rows, span)
        return Result(self._proposed(rows, verdict) if HEADS in work.probes else verdict, None)

    def _grow(self, rows: Rows, span: Span) -> None:
        cached = self._cached.get((rows.session, span.first), 0)  # a tree's, which its keep cuts to `start`, too
        if cached < rows.start:
            raise HoleError(f"session {rows.session!r} begins at {rows.start}, but {cached} tokens are cached")
        self._cached[rows.session, span.first] = rows.start + rows.n

    def _verdict(self, rows: Rows, span: Span) -> Verdict:
        session, at = self._session(rows.session), rows.start + rows.n - rows.check
        if span.embed:
            plain = rows.tokens[: rows.n - rows.check]
            if session.path[rows.start : at] != plain:
                self._unknown.tokens += _differ(session.path[rows.start : at], plain)
        self._unknown.asked += rows.n
        drafts = rows.tokens[len(rows.tokens) - rows.check :]
        if rows.parents is not None:
            return self._lookup.tree(session, at, drafts, rows.parents)
        return self._lookup.verdict(session, at, drafts)

    def _proposed(self, rows: Rows, verdict: Verdict) -> Verdict:
        """With the tree that the target's heads grow behind it."""
        if self._medusa is None:
            raise ValueError(f"session {rows.session!r} wants heads to draft, and the trace knows none")
        at = rows.start + rows.n - rows.check + verdict.accepted
        tokens = self._lookup.proposal(self._session(rows.session), at)
        return replace(verdict, proposal=(tokens, self._medusa.parents))


def _cut(place: Place, start: int, session: str) -> Place:
    base, length = place
    if length < start:
        raise HoleError(f"session {session!r} begins at token {start}, but only {length} tokens are cached")
    return min(base, start), start


def _differ(path: tuple[int, ...], tokens: tuple[int, ...]) -> int:
    return sum(a != b for a, b in zip(path, tokens, strict=False)) + max(0, len(tokens) - len(path))
