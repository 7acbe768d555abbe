"""Fits a model of acceptance to a trace: counts, pools of scores, and how well it does.

How near a model of acceptance is to the trace that it was fitted to.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any

from serving.core.scores import ROUTE, SCORES
from serving.learned.medusa import parents_of
from serving.outcomes.fitted import BEHIND, KINDS, Fitted, Pools
from serving.outcomes.lookup import Lookup
from serving.outcomes.sampled_engine import Chances, Rights
from serving.outcomes.trace import TOPS, Recorded, Tables, Trace

WINDOWS = range(1, 9)

Answer = Sequence[bool]
"""Per position of an answer: would the drafter's next token be the target's?"""


def rate(answers: Iterable[Answer]) -> float:
    """The share of positions where the drafter is right."""
    flat = [right for answer in answers for right in answer]
    return sum(flat) / max(1, len(flat))


def lengths(answers: Iterable[Answer], k: int) -> list[float]:
    """Shares of windows of `k` drafts of which 0..k stand, each window behind the last one's correction or bonus.

    Windows that the end of an answer cuts are left out.
    """
    seen: Counter[int] = Counter()
    for answer in answers:
        at = 0
        while at + k <= len(answer):
            run = next((i for i in range(k) if not answer[at + i]), k)
            seen[run] += 1
            at += run + 1
    return [seen[n] / max(1, seen.total()) for n in range(k + 1)]


def compare(trace: Sequence[Answer], model: Sequence[Answer]) -> dict[str, object]:
    """Acceptance rate, and by window its distribution, its mean, and half the summed difference (total variation)."""
    found: dict[str, object] = {"rate": {"trace": rate(trace), "model": rate(model)}}
    windows = {}
    for k in WINDOWS:
        a, b = lengths(trace, k), lengths(model, k)
        windows[str(k)] = {
            "trace": a,
            "model": b,
            "mean": {"trace": _mean(a), "model": _mean(b)},
            "total_variation": sum(abs(x - y) for x, y in zip(a, b, strict=True)) / 2,
        }
    return found | {"windows": windows}


def auc(scores: Sequence[float], rights: Sequence[bool]) -> float:
    """The probability that a right draft scores higher than a wrong one, ties counting half; 0.5 without both."""
    wins, below = 0.0, 0
    for _, tied in groupby(sorted(zip(scores, rights, strict=True)), lambda pair: pair[0]):
        found = [right for _, right in tied]
        wrong = len(found) - sum(found)
        wins += sum(found) * (below + wrong / 2)
        below += wrong
    pairs = below * (len(scores) - below)
    return wins / pairs if pairs else 0.5


def _mean(shares: Sequence[float]) -> float:
    return sum(n * share for n, share in enumerate(shares))


LARGEST = 4096
"""Rows of a pool at most: enough for any quantile that a policy looks at."""

DRAWN = 20_000
"""Positions that are drawn to see how well the model does."""

Row = tuple[float, ...]


def fitted(trace: Trace, seed: int) -> Fitted:
    """The model; its goodness compares the trace with many answers of the same lengths, drawn under `seed`.

    Raises ValueError for a trace without a single answer, or whose drafts are all right or all wrong.
    """
    answers = [_rights(session, trace.tables) for session in trace.sessions]
    chances, pools = _chances(answers), _pools(trace, answers)
    model, confidence = _drawn(answers, chances, pools, seed)
    measured = compare(answers, model) | {
        "auc": {"trace": _auc(trace, answers), "model": auc(confidence, [r for a in model for r in a])}
    }
    written = [len(s.path) - s.prompt_tokens for s in trace.sessions]
    lengths = tuple((s.prompt_tokens, n, n < s.limit) for s, n in zip(trace.sessions, written, strict=True))
    made_from = trace.made_from | {"trace": trace.described, "seed": str(seed)}
    layers = (trace.device_layers, trace.cloud_layers)
    return Fitted(chances, pools, lengths, layers, made_from, measured, trace.exit, trace.tree, router=trace.router)


def _rights(session: Recorded, tables: Tables) -> list[bool]:
    """Per position of an answer: is the drafter's next token the target's?"""
    rows = slice(session.first, session.first + session.positions - 1)
    found: list[bool] = (tables.drafts[rows, 0] == tables.targets[rows]).tolist()
    return found


def _chances(answers: Sequence[Sequence[bool]]) -> Chances:
    steps = [(a, b) for answer in answers for a, b in pairwise(answer)]
    return Chances(
        _share([answer[0] for answer in answers if answer]),
        _share([b for a, b in steps if a]),
        _share([b for a, b in steps if not a]),
    )


def _share(rights: Sequence[bool]) -> float:
    """With half a success and half a failure added (Jeffreys' prior), so that nothing seen once is certain."""
    return (sum(rights) + 0.5) / (len(rights) + 1)


def _pools(trace: Trace, answers: Sequence[Sequence[bool]]) -> Pools:
    rows: list[list[Row]] = [[] for _ in KINDS]
    for session, rights in zip(trace.sessions, answers, strict=True):
        before = True
        for i, right in enumerate(rights):
            row = session.first + i
            rows[2 * before + right].append(_row(trace.tables, row, 0, right))
            if not right and trace.tables.counts[row] > 1:
                rows[BEHIND].append(_row(trace.tables, row, 1, False))
            before = right
    for a, b in ((0, 2), (1, 3), (2, 0), (3, 1), (BEHIND, 0)):
        rows[a] = rows[a] or rows[b]
    if not all(rows):
        raise ValueError("the trace's drafts are all right or all wrong; record more prompts, or use outcomes=constant")
    attention = [tuple(row) for row in _thinned(trace.tables.attention.tolist())]
    stems = tuple(_thinned(_stems(trace)))
    thinned, trained = tuple(tuple(_thinned(pool)) for pool in rows), (ROUTE,) if trace.router else ()
    return Pools(thinned, tuple(attention), trace.tables.depth, stems, trained)


def _stems(trace: Trace) -> list[int]:
    """Per position that has a next one: the last candidate of the tree there that the target went on to write."""
    if not trace.tree:
        return []
    lookup, found = Lookup(trace.tables), []
    parents = parents_of(trace.tree)
    for session in trace.sessions:
        for at in range(session.prompt_tokens, len(session.path) - 1):
            keep = lookup.tree(session, at + 1, lookup.proposal(session, at), parents).keep
            found.append(keep[-1] if keep else -1)
    return found


def _row(tables: Tables, row: int, offset: int, right: bool) -> Row:
    tops = tables.tops[row, offset].tolist()
    target = int(tables.targets[row])
    rank = 0 if right else tops.index(target) if offset == 0 and target in tops else TOPS
    route = tables.routes[row, offset : offset + 1].tolist()
    return (*tables.scores[:, row, offset].tolist(), float(rank), float(tables.depths[row, offset]), *route)


def _thinned(rows: Sequence[Any]) -> Sequence[Any]:
    """Evenly chosen rows where there are too many."""
    if len(rows) <= LARGEST:
        return rows
    return [rows[i * len(rows) // LARGEST] for i in range(LARGEST)]


def _drawn(
    answers: Sequence[Sequence[bool]], chances: Chances, pools: Pools, seed: int
) -> tuple[list[list[bool]], list[float]]:
    """Answers of the same lengths by luck, often enough to leave no noise, and the confidence at each position."""
    found: list[list[bool]] = []
    confidence: list[float] = []
    repeats = 1 + DRAWN // max(1, sum(map(len, answers)))
    for number, answer in enumerate(repeats * list(answers)):
        rights = Rights(seed, f"goodness {number}", 0)
        drawn = [rights.run(at, 1, chances.limits) == 1 for at in range(len(answer))]
        confidence += [pools.score(rights, at, 0, int(right), "confidence") for at, right in enumerate(drawn)]
        found.append(drawn)
    return found, confidence


def _auc(trace: Trace, answers: Sequence[Sequence[bool]]) -> float:
    table = trace.tables.scores[SCORES.index("confidence")]
    confidence = [
        float(table[session.first + i, 0])
        for session, answer in zip(trace.sessions, answers, strict=True)
        for i in range(len(answer))
    ]
    return auc(confidence, [right for answer in answers for right in answer])
