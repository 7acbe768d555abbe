"""Which requests got what their class promised: a first token in time, and a token speed while writing."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from pipeline.report.records import Served


@dataclass(frozen=True, slots=True)
class SloOutcome:
    """One class: how many requests it had, and the share of them for which the promise was broken."""

    requests: int
    violation_rate: float


def tokens_per_s(request: Served) -> float:
    """Token speed from the first to the last token that the user saw; a text of one token has no speed to break."""
    gaps = len(request.seen_s) - 1
    duration_s = request.seen_s[-1] - request.seen_s[0] if gaps > 0 else 0.0
    return gaps / duration_s if duration_s > 0 else inf


def met(request: Served) -> bool:
    """Complete, and within its class's speed and first-token time as far as there are any (WISP, section 5.1)."""
    slow = request.slo_tokens_per_s is not None and tokens_per_s(request) < request.slo_tokens_per_s
    promised_s = inf if request.slo_ttft_s is None else request.slo_ttft_s
    late = (inf if request.ttft_s is None else request.ttft_s) > promised_s
    return request.complete and not slow and not late


def by_class(requests: Sequence[Served]) -> dict[str, SloOutcome]:
    """Per class, by name; requests without a class are in none."""
    names = sorted({request.slo for request in requests if request.slo is not None})
    return {name: _outcome([request for request in requests if request.slo == name]) for name in names}


def _outcome(requests: Sequence[Served]) -> SloOutcome:
    return SloOutcome(len(requests), sum(not met(request) for request in requests) / len(requests))
