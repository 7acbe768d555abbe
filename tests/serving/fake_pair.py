"""A pair without models: the next token is a function of the whole prefix that a cache really holds, so that a mistake
in the bookkeeping becomes a wrong token, and a hole in a cache an error.
"""

from dataclasses import dataclass, field

from serving.messages import Blob, Drafted, Forward, Generate, Outcome, Result, Rows, Span, Verdict, Work
from serving.scores import IMPORTANCE

MODULUS, VOCABULARY = (1 << 61) - 1, 997


def extend(prefix: int, token: int) -> int:
    return (prefix * 1000003 + token * 7919 + 12345) % MODULUS


def chance(prefix: int, salt: int) -> float:
    return ((prefix ^ salt) * 0x9E3779B97F4A7C15 >> 20 & 0xFFFFF) / 0x100000


def target_token(prefix: int) -> int:
    return (prefix >> 7) % VOCABULARY


def own_text(prompt: tuple[int, ...], limit: int, ends: tuple[int, ...] = ()) -> tuple[int, ...]:
    """What the target alone writes."""
    prefix, out = 1, []
    for token in prompt:
        prefix = extend(prefix, token)
    while len(out) < limit and not (out and out[-1] in ends):
        out.append(target_token(prefix))
        prefix = extend(prefix, out[-1])
    return tuple(out)


@dataclass
class FakePair:
    """A drafter that agrees with the target with probability `alpha`, and the target, on one chip."""

    alpha: float = 0.7
    step_s: float = 0.01
    forward_s: float = 0.015
    row_s: float = 2e-4
    blobs: dict[str, tuple[tuple[int, ...], list[int]]] = field(default_factory=dict)
    caches: dict[tuple[str, int | None], list[int]] = field(default_factory=dict)
    rows_run: int = 0

    def execute(self, work: Work) -> tuple[Outcome, float]:
        if isinstance(work, Generate):
            return self._generate(work)
        return self._forward(work)

    def drop(self, session: str, first: int | None) -> None:
        self.caches.pop((session, first), None)

    def drafter_token(self, prefix: int) -> int:
        token = target_token(prefix)
        agrees = chance(prefix, 1) < self.alpha
        return token if agrees else (token + 1 + int(chance(prefix, 2) * 5)) % VOCABULARY

    def tops(self, prefix: int) -> tuple[int, int, int]:
        """The drafter's three likeliest, among which is the target's token."""
        own, target = self.drafter_token(prefix), target_token(prefix)
        return own, (own + 7) % VOCABULARY if own == target else target, (own + 11) % VOCABULARY

    def _score(self, prefix: int, name: str) -> float:
        agrees = self.drafter_token(prefix) == target_token(prefix)
        x = chance(prefix, sum(map(ord, name)))
        return 0.5 + 0.5 * x if agrees else 0.75 * x

    def _cache(self, session: str, part: int | None, start: int) -> list[int]:
        cache = self.caches.setdefault((session, part), [1])
        if len(cache) <= start:
            raise AssertionError(
                f"hole: the cache of {session}/{part} has {len(cache) - 1} tokens, the work starts at {start}"
            )
        del cache[start + 1 :]
        return cache

    def _generate(self, work: Generate) -> tuple[Drafted, float]:
        cache = self._cache(work.session, None, work.start)
        if work.branches:
            return self._branches(work, cache[-1])
        assert work.feed or not work.stop.cap, "a model answers to a row"
        for token in work.feed:
            cache.append(extend(cache[-1], token))
        tokens: list[int] = []
        scores: dict[str, list[float]] = {name: [] for name in work.probes}
        if IMPORTANCE in scores and work.again:
            before = len(cache) - 1 - (work.again if work.stop.cap else work.again - 1)
            scores[IMPORTANCE] = [self._score(prefix, IMPORTANCE) for prefix in cache[before : before + work.again]]
        stopped, odds, tops = False, [], []
        while len(tokens) < work.stop.cap and not stopped and not (tokens and tokens[-1] in work.ends):
            if tokens:
                cache.append(extend(cache[-1], tokens[-1]))
            stopped = bool(work.stop.score) and self._score(cache[-1], work.stop.score) < work.stop.below
            if stopped and not work.stop.keep and len(tokens) >= work.stop.least:
                break
            tokens.append(self.drafter_token(cache[-1]))
            odds += _odds(work, cache[-1:])
            tops.append(self.tops(cache[-1]))
            for name in work.probes:
                scores[name].append(self._score(cache[-1], name))
        self.rows_run += len(work.feed) + max(0, len(tokens) - 1)
        seen = {k: tuple(v) for k, v in scores.items()}
        done = Drafted(tuple(tokens), seen, tuple(tops), stopped, len(cache) - 1, tuple(odds))
        return done, self.step_s * max(1, len(tokens)) + self.row_s * len(work.feed)

    def _branches(self, work: Generate, base: int) -> tuple[Drafted, float]:
        prefixes = []
        for branch in work.branches:
            prefix = base
            for token in branch:
                prefix = extend(prefix, token)
            prefixes.append(prefix)
        tokens = tuple(self.drafter_token(p) for p in prefixes)
        seen = [name for name in work.probes if name != IMPORTANCE]
        scores = {name: tuple(self._score(p, name) for p in prefixes) for name in seen}
        tops = tuple(self.tops(p) for p in prefixes)
        return Drafted(tokens, scores, tops, False, work.start, tuple(_odds(work, prefixes))), self.step_s

    def _forward(self, work: Forward) -> tuple[tuple[Result, ...], float]:
        results = tuple(self._rows(work.span, rows) for rows in work.rows)
        n = sum(rows.n for rows in work.rows)
        self.rows_run += n
        return results, self.forward_s + self.row_s * n

    def _rows(self, span: Span, rows: Rows) -> Result:
        tokens, prefixes = (rows.tokens, []) if span.embed else self.blobs[rows.blob.id if rows.blob else ""]
        if span.first < span.last:
            cache = self._cache(rows.session, span.first, rows.start)
            for token in tokens:
                cache.append(extend(cache[-1], token))
            prefixes = cache[rows.start + 1 :]
        if not span.head:
            blob = Blob(f"{span.first}/{rows.session}/{rows.start}/{len(self.blobs)}", rows.n * 8192)
            self.blobs[blob.id] = tokens, prefixes
            return Result(None, blob)
        return Result(self._verdict(rows, prefixes) if rows.rule else None, None)

    def _verdict(self, rows: Rows, prefixes: list[int]) -> Verdict:
        plain = rows.n - rows.check
        drafts = rows.tokens[len(rows.tokens) - rows.check :]
        if rows.sampling and rows.check:
            assert [odds.id for odds in rows.odds] == [f"odds/{prefix}" for prefix in prefixes[plain - 1 : -1]]
        accepted = 0
        while accepted < rows.check and drafts[accepted] == target_token(prefixes[plain - 1 + accepted]):
            accepted += 1
        return Verdict(accepted, target_token(prefixes[plain - 1 + accepted]))


def _odds(work: Generate, prefixes: list[int]) -> list[Blob]:
    """What a token was drawn from is known by what stood before it."""
    return [Blob(f"odds/{prefix}", 16) for prefix in prefixes] if work.sampling or work.whole else []
