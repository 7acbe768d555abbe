"""An engine that looks outcomes up in a trace, and counts what the trace cannot know.

The drafter's cache is known by two numbers: it holds the recorded text up to `base`, and then the recorded continuation
from there. A token that is neither is off the path: from there on the position alone decides, as if the text were the
recorded one, and `Unknown` counts it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from serving.latency import Load
from serving.messages import Blob, Drafted, Forward, Generate, Outcome, Result, Rows, Span, Verdict
from serving.outcomes.loads import DraftLoads, forward_load
from serving.outcomes.lookup import Lookup, Place, check_prompt
from serving.outcomes.trace import Recorded, Trace
from serving.scores import IMPORTANCE


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

    def notes(self) -> tuple[str, ...]:
        if not self.tokens + self.deep:
            return ()
        share = (self.tokens + self.deep) / max(1, self.asked)
        return (
            f"{self.tokens} tokens left the recorded path, and {self.deep} drafts were deeper than recorded "
            f"({share:.1%} of the tokens asked about); there the recorded outcome of the same position stood in",
        )


class Reader:
    """One model of a recorded pair; the drafter by `Generate`, the target by `Forward`."""

    def __init__(self, trace: Trace, bound: Mapping[str, Recorded], layers: int, unknown: Unknown) -> None:
        self._bound, self._unknown = bound, unknown
        self._lookup, self._loads = Lookup(trace.tables), DraftLoads(layers)
        self._drafter: dict[str, Place] = {}
        self._cached: dict[tuple[str, int | None], int] = {}
        """The target's cached tokens, by session and first layer."""
        self._serial = count(1)

    def execute(self, work: Generate | Forward) -> tuple[Outcome, tuple[Load, ...]]:
        """Looks the outcome up.

        Raises HoleError for work that begins behind a cache, ValueError for a prompt that is not the session's, and for
        what no trace records: sampling, layer-wise early exit, trees of drafts.
        """
        if isinstance(work, Forward):
            results = tuple(self._rows(rows, work.span, out) for rows, out in zip(work.rows, work.out, strict=True))
            return results, (forward_load(work),)
        if work.sampling is not None or work.exit is not None:
            raise ValueError(f"session {work.session!r} samples or exits early, which a trace does not record")
        session, place = self._session(work.session), self._drafter.get(work.session, (0, 0))
        place = _cut(place, work.start, work.session)
        return self._branches(work, session, place) if work.branches else self._continue(work, session, place)

    def drop(self, session: str, first: int | None) -> None:
        """Frees what is known of a cache."""
        if first is None:
            self._drafter.pop(session, None)
        self._cached.pop((session, first), None)

    def _session(self, name: str) -> Recorded:
        try:
            return self._bound[name]
        except KeyError:
            raise ValueError(f"session {name!r} was not among the calls that the trace was opened for") from None

    def _continue(self, work: Generate, session: Recorded, place: Place) -> tuple[Drafted, tuple[Load, ...]]:
        stop, fed = work.stop, len(work.feed)
        if stop.cap and not fed:
            raise ValueError(f"session {work.session!r} asks for {stop.cap} tokens with nothing to feed")
        place, strange = self._lookup.fed(session, place, work.feed)
        found = self._lookup.draft(session, place, stop, work.ends)
        self._unknown.asked += fed + len(found.at)
        self._unknown.tokens += strange
        self._unknown.deep += found.deep
        self._drafter[work.session] = self._lookup.fed(session, place, found.tokens[: found.passes - 1])[0]
        scores = {name: self._lookup.scores(name, found.at) for name in work.probes if name != IMPORTANCE}
        if IMPORTANCE in work.probes:
            scores[IMPORTANCE] = self._lookup.importance(found.at)
            self._unknown.deep += self._lookup.beyond(found.at)
        cached = work.start + fed + max(0, found.passes - 1)
        drafted = Drafted(found.tokens, scores, self._lookup.tops(found.at), found.stopped, cached)
        return drafted, self._loads.of(work.start, fed, found.passes, int(stop.cap > 0))

    def _branches(self, work: Generate, session: Recorded, place: Place) -> tuple[Drafted, tuple[Load, ...]]:
        """One token after each branch. A branch lives on only if its guess is what the target wrote, and then it is on
        the path: what stands in for the other ones is never seen, and not counted.
        """
        lookup = self._lookup
        at = [lookup.next(session, lookup.fed(session, place, branch)[0]) for branch in work.branches]
        scores = {name: lookup.scores(name, at) for name in work.probes if name != IMPORTANCE}
        if IMPORTANCE in work.probes:
            scores[IMPORTANCE] = tuple(lookup.importance([one])[0] for one in at)
        self._drafter[work.session] = place
        drafted = Drafted(lookup.tokens(at), scores, lookup.tops(at), False, work.start)
        rows = sum(len(branch) for branch in work.branches)
        return drafted, self._loads.of(work.start, rows, 1, len(at))

    def _rows(self, rows: Rows, span: Span, out: str) -> Result:
        if rows.parents is not None or rows.keep is not None or rows.rule == "sample":
            raise ValueError(f"session {rows.session!r} sends a tree or samples, which a trace does not record")
        if span.embed:
            if len(rows.tokens) != rows.n:
                raise ValueError(f"session {rows.session!r} has {rows.n} rows but {len(rows.tokens)} tokens to embed")
            check_prompt(self._session(rows.session), rows.start, rows.tokens)
        if span.first < span.last:
            self._grow(rows, span)
        if not span.head:
            sent = rows.n if out == "all" else rows.check + 1
            return Result(None, Blob(f"hidden/{span.last}/{rows.session}/{next(self._serial)}", sent))
        return Result(self._verdict(rows, span) if rows.rule else None, None)

    def _grow(self, rows: Rows, span: Span) -> None:
        cached = self._cached.get((rows.session, span.first), 0)
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
        return self._lookup.verdict(session, at, rows.tokens[len(rows.tokens) - rows.check :])


def _cut(place: Place, start: int, session: str) -> Place:
    base, length = place
    if length < start:
        raise HoleError(f"session {session!r} begins at token {start}, but only {length} tokens are cached")
    return min(base, start), start


def _differ(path: tuple[int, ...], tokens: tuple[int, ...]) -> int:
    return sum(a != b for a, b in zip(path, tokens, strict=False)) + max(0, len(tokens) - len(path))
