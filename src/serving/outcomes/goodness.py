"""How near a model of acceptance is to the trace that it was fitted to."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

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
