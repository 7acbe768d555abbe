"""SLO compliance: the first token in time and the promised token speed; percentiles of waiting times (HAT, section
4.2).
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from pipeline.report.records import RequestRecord
from pipeline.report.statistics import percentile


@dataclass(frozen=True, slots=True)
class SloCompliance:
    """One class: how many requests it had, and the share of them for which the promise was broken."""

    requests: int
    violation_rate: float


def tokens_per_s(request: RequestRecord) -> float:
    """Token speed from the first to the last token that the user saw; a text of one token has no speed to break."""
    gaps = len(request.token_times_s) - 1
    duration_s = request.token_times_s[-1] - request.token_times_s[0] if gaps > 0 else 0.0
    return gaps / duration_s if duration_s > 0 else inf


def meets_slo(request: RequestRecord) -> bool:
    """Complete, and within its class's speed and first-token time as far as there are any (WISP, section 5.1)."""
    slow = request.slo_tokens_per_s is not None and tokens_per_s(request) < request.slo_tokens_per_s
    promised_s = inf if request.slo_ttft_s is None else request.slo_ttft_s
    late = (inf if request.ttft_s is None else request.ttft_s) > promised_s
    return request.complete and not slow and not late


def by_slo_class(requests: Sequence[RequestRecord]) -> dict[str, SloCompliance]:
    """Per class, by name; requests without a class are in none."""
    names = sorted({request.slo for request in requests if request.slo is not None})
    return {name: _class_compliance([request for request in requests if request.slo == name]) for name in names}


def _class_compliance(requests: Sequence[RequestRecord]) -> SloCompliance:
    return SloCompliance(len(requests), sum(not meets_slo(request) for request in requests) / len(requests))


_PERCENTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_WITHIN_S = (0.1, 0.2, 0.3, 0.35, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class SlaPercentiles:
    """How long what a user waits for takes, by length (HAT, section 4.2): a prompt per 128 of its tokens, ten tokens of
    an answer behind its first. By the share of them that take no longer: `p50`, `p90`; and the share within so many
    seconds: `within_0.3`.
    """

    prefill_128_s: dict[str, float]
    decode_10_s: dict[str, float]


def sla_percentiles(requests: Sequence[RequestRecord]) -> SlaPercentiles:
    """Percentiles of these requests' waiting times; empty without a first token, or without ten tokens after it."""
    prefills_s = [128 * r.ttft_s / r.prompt_tokens for r in requests if r.ttft_s is not None and r.prompt_tokens]
    decodes_s = [b - a for r in requests for a, b in zip(r.token_times_s[0::10], r.token_times_s[10::10], strict=False)]
    return SlaPercentiles(_by_share(prefills_s), _by_share(decodes_s))


def _by_share(times_s: Sequence[float]) -> dict[str, float]:
    if not times_s:
        return {}
    ranked = sorted(times_s)
    within = {f"within_{limit_s:g}": bisect_right(ranked, limit_s) / len(ranked) for limit_s in _WITHIN_S}
    return {f"p{100 * share:g}": percentile(ranked, share) for share in _PERCENTILES} | within
