"""Totals of a job's records: latency, throughput, acceptance, offloading, bytes, energy, cost, quality."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.report import cost, slo
from pipeline.report.cost import CLOUD_ORIGINS, CloudCost, TimeBreakdown, estimate_cost
from pipeline.report.records import ORIGINS, Records, RequestRecord
from pipeline.report.slo import SlaPercentiles, SloCompliance
from pipeline.report.statistics import Percentiles


@dataclass(frozen=True)
class LatencySummary:
    """Seconds. TTFT counts from the request's arrival; TBT is each request's mean gap; a gap is any two tokens'."""

    ttft_s: Percentiles | None
    tbt_s: Percentiles | None
    itl_s: Percentiles | None
    end_to_end_s: Percentiles | None
    cloud_queue_s: Percentiles | None
    """A request's queueing in the cloud, all its rounds together."""
    service_s_per_token: Percentiles | None
    """A request's service, from the device's first move to the end, over its tokens: unlike the gaps it does not depend
    on how many are shown at once.
    """
    verification_s: Percentiles | None
    """In the cloud for each verification, queueing included; a request's mean."""


@dataclass(frozen=True)
class ThroughputSummary:
    """Over the time from the first arrival to the last end.

    Goodput counts the tokens of complete requests that met their SLO class; without classes, of complete requests.
    """

    tokens_per_s: float
    requests_per_s: float
    verifications_per_s: float
    goodput_tokens_per_s: float
    slo_violation_rate: float | None
    """Violated requests / requests with an SLO class."""
    busy_period_s: float
    """The mean length of the periods in which any request was under way."""


@dataclass(frozen=True)
class SpeculationSummary:
    """What became of drafts; None where there was none.

    acceptance_rate              accepted drafts / verified drafts
    acceptance_length            accepted drafts per verification, without the token that the cloud adds
    acceptance_length_with_bonus the same with that token (correction or bonus), as HAT, Table 4, counts "Accept"
    wasted_share                 drafts that are not in the text / drafts
    """

    drafted: int
    verified: int
    accepted: int
    verifications: int
    acceptance_rate: float | None
    acceptance_length: float | None
    acceptance_length_with_bonus: float | None
    wasted_share: float | None


@dataclass(frozen=True)
class WasteSummary:
    """Wasted drafting per verification (WISP, Eq. 7 to 9); None without verifications.

    rejected_tokens   sent drafts that the cloud rejected
    wdt_s             their drafting time, at the mean time of a draft
    time_share        that time over all drafting time
    discarded_tokens  drafts that a stop rule dropped; their time is not in `wdt_s`
    """

    rejected_tokens: float | None
    wdt_s: float | None
    time_share: float | None
    discarded_tokens: float | None


@dataclass(frozen=True)
class EarlyExitSummary:
    """token_share: drafted tokens that left before the last layer; layer_share: mean share of the layers that ran."""

    token_share: float | None
    layer_share: float | None


@dataclass(frozen=True)
class LookaheadSummary:
    """Verdicts for which the device drafted ahead while it waited: how many, and the shares with the right position and
    with the right position and token. Only the latter save time.
    """

    attempts: int
    position_hit_rate: float | None
    hit_rate: float | None


@dataclass(frozen=True)
class StallSummary:
    """Shares of the service time in which the device waited for the link or for the cloud; None without time lines."""

    link_share: float | None
    cloud_share: float | None


@dataclass(frozen=True)
class OffloadingSummary:
    """chunk_share: offloaded draft chunks / draft chunks (None without drafts). token_share: tokens of the text that
    the cloud accepted or wrote / all.
    """

    chunk_share: float | None
    token_share: float
    tokens_by_origin: dict[str, int]


@dataclass(frozen=True)
class ResourceSummary:
    """Sums over all requests; energy is None where a chip's power is not known."""

    uplink_nbytes: int
    downlink_nbytes: int
    uplink_messages: int
    device_busy_s: float
    cloud_busy_s: float
    cloud_queue_s: float
    cloud_forward_tokens: int
    device_j_per_token: float | None
    cloud_j_per_token: float | None


@dataclass(frozen=True)
class QualitySummary:
    """Means over the requests that have a score; None without any."""

    mean: float | None
    rouge_1: float | None
    by_task: dict[str, float]


@dataclass(frozen=True)
class JobSummary:
    """The totals of one job."""

    requests: int
    complete: int
    tokens: int
    latency: LatencySummary
    throughput: ThroughputSummary
    speculation: SpeculationSummary
    waste: WasteSummary
    early_exit: EarlyExitSummary
    lookahead: LookaheadSummary
    stalls: StallSummary
    sla: SlaPercentiles
    offloading: OffloadingSummary
    breakdown: TimeBreakdown
    resources: ResourceSummary
    cost: CloudCost
    quality: QualitySummary
    slo: dict[str, SloCompliance]
    tiers: dict[str, float]
    """Of each tier of a testbed: tiers/NAME/utilisation, /memory, /blocks, /nodes."""
    overhead: dict[str, float]
    """Decision times, where a wall clock measured them."""
    estimator: dict[str, float]
    """Errors of the scheduler's estimates of the cloud's batch times."""

    def metrics(self) -> dict[str, float]:
        """Every number that is known, flat: `latency/ttft_s/median`, `cost/generated_s`, ..."""
        return dict(_flatten(asdict(self), ""))


def summarise(records: Records) -> JobSummary:
    """The totals of `records`."""
    requests, latency = records.requests, _latency(records.requests)
    origins = _origins(requests)
    tbt_s = latency.tbt_s.mean if latency.tbt_s else None
    factor = records.meta.packing_factor
    return JobSummary(
        requests=len(requests),
        complete=sum(request.complete for request in requests),
        tokens=sum(origins.values()),
        latency=latency,
        throughput=_throughput(requests),
        speculation=_speculation(requests, origins),
        waste=_waste(requests),
        early_exit=_early_exit(requests),
        lookahead=_lookahead(requests),
        stalls=_stalls(requests),
        sla=slo.sla_percentiles(requests),
        offloading=_offloading(requests, origins),
        breakdown=cost.time_breakdown(requests),
        resources=_resources(requests),
        cost=estimate_cost(origins, _sum(requests, "drafts_verified"), tbt_s, factor.value if factor else None),
        quality=_quality(requests),
        slo=slo.by_slo_class(requests),
        tiers={f"{name}/{figure}": n for name, tier in records.meta.tiers.items() for figure, n in tier.items()},
        overhead=dict(records.meta.overhead),
        estimator=dict(records.meta.estimator),
    )


def _latency(requests: Sequence[RequestRecord]) -> LatencySummary:
    return LatencySummary(
        Percentiles.of(request.ttft_s for request in requests),
        Percentiles.of(request.mean_tbt_s for request in requests),
        Percentiles.of(gap_s for request in requests for gap_s in request.tbt_s),
        Percentiles.of(request.end_to_end_s for request in requests),
        Percentiles.of(request.cloud_queue_s for request in requests),
        Percentiles.of(request.service_s_per_token for request in requests),
        Percentiles.of(request.verification_s for request in requests),
    )


def _throughput(requests: Sequence[RequestRecord]) -> ThroughputSummary:
    ends_s = [request.ended_s for request in requests if request.ended_s is not None]
    duration_s = max(ends_s, default=0.0) - min(request.arrived_s for request in requests)
    if duration_s <= 0:
        return ThroughputSummary(0.0, 0.0, 0.0, 0.0, None, 0.0)
    tokens = sum(len(request.tokens) for request in requests)
    good = sum(len(request.tokens) for request in requests if slo.meets_slo(request))
    complete = sum(request.complete for request in requests)
    asked = _sum(requests, "chunks_offloaded")
    promised = [request for request in requests if request.slo]
    broken = _share(sum(not slo.meets_slo(request) for request in promised), len(promised))
    return ThroughputSummary(
        tokens / duration_s, complete / duration_s, asked / duration_s, good / duration_s, broken,
        _busy_period_s(requests),
    )  # fmt: skip


def _busy_period_s(requests: Sequence[RequestRecord]) -> float:
    periods, total_s, until_s = 0, 0.0, float("-inf")
    for begin_s, end_s in sorted((r.arrived_s, r.ended_s) for r in requests if r.ended_s is not None):
        periods += begin_s > until_s
        total_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return total_s / max(1, periods)


def _speculation(requests: Sequence[RequestRecord], origins: Mapping[str, int]) -> SpeculationSummary:
    drafted, judged, accepted = (_sum(requests, name) for name in ("drafted", "drafts_verified", "drafts_accepted"))
    asked = _sum(requests, "chunks_offloaded")
    added = origins["corrected"] + origins["bonus"]
    return SpeculationSummary(
        drafted, judged, accepted, asked, _share(accepted, judged), _share(accepted, asked),
        _share(accepted + added, asked), _share(_sum(requests, "drafts_unused"), drafted),
    )  # fmt: skip


def _waste(requests: Sequence[RequestRecord]) -> WasteSummary:
    asked, fell = (
        _sum(requests, "chunks_offloaded"),
        _sum(requests, "drafts_verified") - _sum(requests, "drafts_accepted"),
    )
    discarded = _sum(requests, "discarded_tokens")
    draft_s = sum(request.draft_s for request in requests)
    each_s = draft_s / max(1, _sum(requests, "drafted") + discarded)
    return WasteSummary(
        _share(fell, asked), _share(fell * each_s, asked), _share(fell * each_s, draft_s), _share(discarded, asked)
    )


def _early_exit(requests: Sequence[RequestRecord]) -> EarlyExitSummary:
    drafted = _sum(requests, "drafted")
    return EarlyExitSummary(
        _share(_sum(requests, "early_exit_tokens"), drafted), _share(sum(r.layer_share_sum for r in requests), drafted)
    )


def _lookahead(requests: Sequence[RequestRecord]) -> LookaheadSummary:
    guesses = _sum(requests, "lookahead_attempts")
    return LookaheadSummary(
        guesses,
        _share(_sum(requests, "lookahead_position_hits"), guesses),
        _share(_sum(requests, "lookahead_hits"), guesses),
    )


def _stalls(requests: Sequence[RequestRecord]) -> StallSummary:
    seen = [request for request in requests if request.link_stall_s is not None]
    service_s = sum(request.service_s or 0.0 for request in seen)
    return StallSummary(
        _share(sum(request.link_stall_s or 0.0 for request in seen), service_s),
        _share(sum(request.cloud_stall_s or 0.0 for request in seen), service_s),
    )


def _offloading(requests: Sequence[RequestRecord], origins: Mapping[str, int]) -> OffloadingSummary:
    with_cloud = sum(origins[origin] for origin in ("accepted", *CLOUD_ORIGINS))
    share = _share(_sum(requests, "chunks_offloaded"), _sum(requests, "chunks"))
    return OffloadingSummary(share, with_cloud / max(1, sum(origins.values())), dict(origins))


def _resources(requests: Sequence[RequestRecord]) -> ResourceSummary:
    return ResourceSummary(
        uplink_nbytes=_sum(requests, "uplink_nbytes"),
        downlink_nbytes=_sum(requests, "downlink_nbytes"),
        uplink_messages=_sum(requests, "uplink_messages"),
        device_busy_s=sum(request.device_busy_s for request in requests),
        cloud_busy_s=sum(request.cloud_busy_s for request in requests),
        cloud_queue_s=sum(request.cloud_queue_s for request in requests),
        cloud_forward_tokens=_sum(requests, "cloud_forward_tokens"),
        device_j_per_token=_j_per_token(requests, "device_energy_j"),
        cloud_j_per_token=_j_per_token(requests, "cloud_energy_j"),
    )


def _j_per_token(requests: Sequence[RequestRecord], name: str) -> float | None:
    energies: list[float | None] = [getattr(request, name) for request in requests]
    known = [energy for energy in energies if energy is not None]
    tokens = sum(len(request.tokens) for request in requests)
    return sum(known) / tokens if tokens and len(known) == len(energies) else None


def _quality(requests: Sequence[RequestRecord]) -> QualitySummary:
    tasks = sorted({request.task for request in requests if request.quality is not None})
    by_task = {task: _mean([request.quality for request in requests if request.task == task]) for task in tasks}
    return QualitySummary(
        _mean([request.quality for request in requests]),
        _mean([request.rouge_1 for request in requests]),
        {task: value for task, value in by_task.items() if value is not None},
    )


def _origins(requests: Sequence[RequestRecord]) -> dict[str, int]:
    counts = Counter(origin for request in requests for origin in request.origins)
    return {origin: counts[origin] for origin in ORIGINS}


def _sum(requests: Sequence[RequestRecord], name: str) -> int:
    return sum(getattr(request, name) for request in requests)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _flatten(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}/")
        elif value is not None:
            yield f"{prefix}{key}", float(value)
