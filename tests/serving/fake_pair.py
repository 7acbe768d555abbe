"""A pair without models: the next token is a function of the whole prefix that a cache really holds, so that a mistake
in the bookkeeping becomes a wrong token, and a hole in a cache an error.
"""

from dataclasses import dataclass, field, replace

from serving.core.scores import IMPORTANCE
from serving.learned.medusa import Medusa
from serving.messages import HEADS, Blob, Drafted, Forward, Generate, Outcome, Result, Rows, Span, Verdict, Work

MODULUS, VOCABULARY = (1 << 61) - 1, 997
ROW_NBYTES = 8192
"""Of a hidden state."""


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
    """Hidden states: tokens and prefixes of the rows; shared by chips that pass them on to each other."""
    caches: dict[tuple[str, int | None], list[int]] = field(default_factory=dict)
    drafts_at: dict[tuple[str, int | None], int] = field(default_factory=dict)
    """Where the drafts of a session's last forward began."""
    medusa: Medusa | None = None
    rows_run: int = 0

    def execute(self, work: Work) -> tuple[Outcome, float]:
        if isinstance(work, Generate):
            return self._generate(work)
        return self._forward(work)

    def drop(self, session: str, first: int | None) -> None:
        self.caches.pop((session, first), None)
        self.drafts_at.pop((session, first), None)

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
        done = Drafted(tuple(tokens), seen, tuple(tops), stopped, len(cache) - 1, tuple(odds), (0,) * len(odds))
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
        odds = tuple(_odds(work, prefixes))
        return Drafted(tokens, scores, tops, False, work.start, odds, (0,) * len(odds)), self.step_s

    def _forward(self, work: Forward) -> tuple[tuple[Result, ...], float]:
        results = [self._rows(work.span, rows, out) for rows, out in zip(work.rows, work.out, strict=True)]
        if HEADS in work.probes:
            results = [self._with_tree(result, rows) for result, rows in zip(results, work.rows, strict=True)]
        n = sum(rows.n for rows in work.rows)
        self.rows_run += n
        return tuple(results), self.forward_s + self.row_s * n

    def _rows(self, span: Span, rows: Rows, out: str) -> Result:
        tokens, prefixes = (rows.tokens, []) if span.embed else self.blobs[rows.blob.id if rows.blob else ""]
        if span.first < span.last:
            tokens = tokens if span.embed else tokens[rows.skip : rows.skip + rows.n]
            assert len(tokens) == rows.n, f"{rows.n} rows, but {len(tokens)} tokens or hidden states"
            prefixes = self._append(tokens, rows, span)
        if not span.head:
            if not out:
                return Result(None, None)
            n = rows.n if out == "all" else rows.check + 1
            blob = Blob(f"{span.first}/{rows.session}/{rows.start}/{len(self.blobs)}", n * ROW_NBYTES)
            self.blobs[blob.id] = tokens[-n:], prefixes[-n:]
            return Result(None, blob)
        return Result(self._verdict(rows, prefixes) if rows.rule else None, None)

    def _append(self, tokens: tuple[int, ...], rows: Rows, span: Span) -> list[int]:
        """What the cache holds of these rows now."""
        key, plain = (rows.session, span.first), rows.n - rows.check
        if rows.keep is not None:
            whole, at = self.caches[key], self.drafts_at[key] + 1
            whole[at:] = [whole[at + i] for i in rows.keep]
        cache = self._cache(rows.session, span.first, rows.start)
        self.drafts_at[key] = rows.start + plain
        for i, token in enumerate(tokens):
            tree = rows.parents is not None and i >= plain
            before = cache[rows.start + plain + rows.parents[i - plain] + 1] if tree and rows.parents else cache[-1]
            cache.append(extend(before, token))
        return cache[rows.start + 1 :]

    def _verdict(self, rows: Rows, prefixes: list[int]) -> Verdict:
        asked, drafts = prefixes[-rows.check - 1 :], rows.tokens[len(rows.tokens) - rows.check :]
        assert len(drafts) == rows.check, "drafts to judge are not there"
        if rows.sampling and rows.check:
            assert [odds.id for odds in rows.odds] == [f"odds/{prefix}" for prefix in asked[:-1]]
        parents = range(-1, rows.check - 1) if rows.parents is None else rows.parents
        path = [-1]
        while True:
            wanted = target_token(asked[path[-1] + 1])
            stands = [i for i, p in enumerate(parents) if p == path[-1] and drafts[i] == wanted]
            if not stands:
                break
            path.append(stands[0])
        return Verdict(len(path) - 1, wanted, None if rows.parents is None else tuple(path[1:]))

    def _with_tree(self, result: Result, rows: Rows) -> Result:
        """The heads' candidates: their likeliest is right with probability `alpha`, else their second."""
        if result.verdict is None:
            return result
        assert self.medusa
        asked = self.blobs[rows.blob.id][1][-rows.check - 1 :] if rows.blob else []
        verdict, likeliest = result.verdict, []
        prefix = extend(asked[(verdict.keep or (verdict.accepted - 1,))[-1] + 1], verdict.token)
        for head in range(self.medusa.count):
            token, other = target_token(prefix), (target_token(prefix) + 3) % VOCABULARY
            ranks = [token, other] if chance(prefix, head) < self.alpha else [other, token]
            likeliest.append(ranks + [(token + 5 + i) % VOCABULARY for i in range(self.medusa.widest)])
            prefix = extend(prefix, token)
        return replace(result, verdict=replace(verdict, proposal=(self.medusa.propose(likeliest), self.medusa.parents)))


def _odds(work: Generate, prefixes: list[int]) -> list[Blob]:
    """What a token was drawn from is known by what stood before it."""
    return [Blob(f"odds/{prefix}", 16) for prefix in prefixes] if work.sampling or work.whole else []
