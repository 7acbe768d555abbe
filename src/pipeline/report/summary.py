"""What a job's records add up to: latency, throughput, acceptance, share offloaded, bytes, energy, cost, quality."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.report import cost, slo
from pipeline.report.cost import CLOUD_WROTE, Cost, Division, estimate
from pipeline.report.records import ORIGINS, Records, Served
from pipeline.report.slo import Sla, SloOutcome
from pipeline.report.statistics import Spread


@dataclass(frozen=True)
class Latency:
    """Seconds. TTFT counts from the request's arrival; TBT is each request's mean gap; a gap is any two tokens'."""

    ttft_s: Spread | None
    tbt_s: Spread | None
    gap_s: Spread | None
    end_to_end_s: Spread | None
    cloud_wait_s: Spread | None
    """A request's queueing in the cloud, all its rounds together."""
    token_s: Spread | None
    """A request's service, from the device's first move to the end, over its tokens: unlike the gaps it does not depend
    on how many are shown at once.
    """
    verification_s: Spread | None
    """In the cloud for each verification, queueing included; a request's mean."""


@dataclass(frozen=True)
class Throughput:
    """Over the time from the first arrival to the last end.

    Goodput counts the tokens of complete requests that met their SLO class; without classes, of complete requests.
    """

    tokens_per_s: float
    requests_per_s: float
    verifications_per_s: float
    goodput_tokens_per_s: float
    violation_rate: float | None
    """Of the requests that were promised something, the share for which it was broken."""
    busy_period_s: float
    """The mean length of the periods in which any request was under way."""


@dataclass(frozen=True)
class Speculation:
    """What became of drafts; None where there was none.

    acceptance_rate              judged drafts that stood / judged drafts
    acceptance_length            drafts that stood in a verification, without the token that the cloud adds
    acceptance_length_with_bonus the same with that token (correction or bonus), as HAT, Table 4, counts "Accept"
    wasted_share                 drafts that are not in the text / drafts
    """

    drafted: int
    judged: int
    accepted: int
    verifications: int
    acceptance_rate: float | None
    acceptance_length: float | None
    acceptance_length_with_bonus: float | None
    wasted_share: float | None


@dataclass(frozen=True)
class Waste:
    """Drafting for nothing, per verification (WISP, Eq. 7 to 9): sent drafts that fell, and the time they took,
    each the mean of a draft; None without verifications.

    share: of all the time spent drafting. discarded: tokens that a stop rule dropped, whose time is not in `wdt_s`.
    """

    tokens: float | None
    wdt_s: float | None
    share: float | None
    discarded: float | None


@dataclass(frozen=True)
class Exits:
    """share: drafted tokens that were read off before the last layer; depth: mean share of the layers that ran."""

    share: float | None
    depth: float | None


@dataclass(frozen=True)
class Ahead:
    """Of the verdicts that the device prepared for while it waited, the share whose position was right, and whose
    position and token were right: only these save anything.
    """

    guesses: int
    position_hit_rate: float | None
    hit_rate: float | None


@dataclass(frozen=True)
class Stalls:
    """Shares of the time of service in which the device stood still, waiting for the link or for the cloud; None where
    no time lines were kept.
    """

    link_share: float | None
    cloud_share: float | None


@dataclass(frozen=True)
class Offloading:
    """chunk_share: draft chunks that the cloud was asked about / draft chunks (None without drafts).
    token_share: tokens of the text that came with a verdict (accepted, corrected, bonus) or from the cloud alone / all.
    """

    chunk_share: float | None
    token_share: float
    tokens_by_origin: dict[str, int]


@dataclass(frozen=True)
class Resources:
    """Sums over all requests; energy is None where a chip's power is not known."""

    uplink_nbytes: int
    downlink_nbytes: int
    uplink_messages: int
    device_busy_s: float
    cloud_busy_s: float
    cloud_wait_s: float
    cloud_rows: int
    device_j_per_token: float | None
    cloud_j_per_token: float | None


@dataclass(frozen=True)
class Quality:
    """Means over the requests that have a score; None without any."""

    mean: float | None
    rouge_1: float | None
    by_task: dict[str, float]


@dataclass(frozen=True)
class Summary:
    """The totals of one job."""

    requests: int
    complete: int
    tokens: int
    latency: Latency
    throughput: Throughput
    speculation: Speculation
    waste: Waste
    exits: Exits
    ahead: Ahead
    stalls: Stalls
    sla: Sla
    offloading: Offloading
    division: Division
    resources: Resources
    cost: Cost
    quality: Quality
    slo: dict[str, SloOutcome]
    tiers: dict[str, float]
    """Of each tier of a testbed: tiers/NAME/busy, /memory, /blocks, /nodes."""
    overhead: dict[str, float]
    """What deciding took, where a clock could tell."""
    estimator: dict[str, float]
    """How near the cloud's batches were to what its scheduler expects."""

    def metrics(self) -> dict[str, float]:
        """Every number that is known, flat: `latency/ttft_s/median`, `cost/written_s`, ..."""
        return dict(_flat(asdict(self), ""))


def summarise(records: Records) -> Summary:
    """The totals of `records`."""
    requests, latency = records.requests, _latency(records.requests)
    origins = _origins(requests)
    tbt_s = latency.tbt_s.mean if latency.tbt_s else None
    factor = records.meta.packing_factor
    return Summary(
        requests=len(requests),
        complete=sum(request.complete for request in requests),
        tokens=sum(origins.values()),
        latency=latency,
        throughput=_throughput(requests),
        speculation=_speculation(requests, origins),
        waste=_waste(requests),
        exits=_exits(requests),
        ahead=_ahead(requests),
        stalls=_stalls(requests),
        sla=slo.compliance(requests),
        offloading=_offloading(requests, origins),
        division=cost.divided(requests),
        resources=_resources(requests),
        cost=estimate(origins, _sum(requests, "sent"), tbt_s, factor.value if factor else None),
        quality=_quality(requests),
        slo=slo.by_class(requests),
        tiers={f"{name}/{figure}": n for name, tier in records.meta.tiers.items() for figure, n in tier.items()},
        overhead=dict(records.meta.overhead),
        estimator=dict(records.meta.estimator),
    )


def _latency(requests: Sequence[Served]) -> Latency:
    return Latency(
        Spread.of(request.ttft_s for request in requests),
        Spread.of(request.mean_tbt_s for request in requests),
        Spread.of(gap_s for request in requests for gap_s in request.tbt_s),
        Spread.of(request.end_to_end_s for request in requests),
        Spread.of(request.cloud_wait_s for request in requests),
        Spread.of(request.token_s for request in requests),
        Spread.of(request.verification_s for request in requests),
    )


def _throughput(requests: Sequence[Served]) -> Throughput:
    ends_s = [request.ended_s for request in requests if request.ended_s is not None]
    duration_s = max(ends_s, default=0.0) - min(request.arrived_s for request in requests)
    if duration_s <= 0:
        return Throughput(0.0, 0.0, 0.0, 0.0, None, 0.0)
    tokens = sum(len(request.tokens) for request in requests)
    good = sum(len(request.tokens) for request in requests if slo.met(request))
    complete = sum(request.complete for request in requests)
    asked = _sum(requests, "chunks_asked")
    promised = [request for request in requests if request.slo]
    broken = _share(sum(not slo.met(request) for request in promised), len(promised))
    return Throughput(
        tokens / duration_s, complete / duration_s, asked / duration_s, good / duration_s, broken,
        _busy_period_s(requests),
    )  # fmt: skip


def _busy_period_s(requests: Sequence[Served]) -> float:
    periods, total_s, until_s = 0, 0.0, float("-inf")
    for begin_s, end_s in sorted((r.arrived_s, r.ended_s) for r in requests if r.ended_s is not None):
        periods += begin_s > until_s
        total_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return total_s / max(1, periods)


def _speculation(requests: Sequence[Served], origins: Mapping[str, int]) -> Speculation:
    drafted, judged, accepted = (_sum(requests, name) for name in ("drafted", "sent", "accepted"))
    asked = _sum(requests, "chunks_asked")
    added = origins["corrected"] + origins["bonus"]
    return Speculation(
        drafted, judged, accepted, asked, _share(accepted, judged), _share(accepted, asked),
        _share(accepted + added, asked), _share(_sum(requests, "wasted"), drafted),
    )  # fmt: skip


def _waste(requests: Sequence[Served]) -> Waste:
    asked, fell = _sum(requests, "chunks_asked"), _sum(requests, "sent") - _sum(requests, "accepted")
    discarded = _sum(requests, "discarded")
    draft_s = sum(request.draft_s for request in requests)
    each_s = draft_s / max(1, _sum(requests, "drafted") + discarded)
    return Waste(
        _share(fell, asked), _share(fell * each_s, asked), _share(fell * each_s, draft_s), _share(discarded, asked)
    )


def _exits(requests: Sequence[Served]) -> Exits:
    drafted = _sum(requests, "drafted")
    return Exits(_share(_sum(requests, "exited"), drafted), _share(sum(r.depth for r in requests), drafted))


def _ahead(requests: Sequence[Served]) -> Ahead:
    guesses = _sum(requests, "guesses")
    return Ahead(guesses, _share(_sum(requests, "position_hits"), guesses), _share(_sum(requests, "hits"), guesses))


def _stalls(requests: Sequence[Served]) -> Stalls:
    seen = [request for request in requests if request.stalled_link_s is not None]
    service_s = sum(request.service_s or 0.0 for request in seen)
    return Stalls(
        _share(sum(request.stalled_link_s or 0.0 for request in seen), service_s),
        _share(sum(request.stalled_cloud_s or 0.0 for request in seen), service_s),
    )


def _offloading(requests: Sequence[Served], origins: Mapping[str, int]) -> Offloading:
    with_cloud = sum(origins[origin] for origin in ("accepted", *CLOUD_WROTE))
    share = _share(_sum(requests, "chunks_asked"), _sum(requests, "chunks"))
    return Offloading(share, with_cloud / max(1, sum(origins.values())), dict(origins))


def _resources(requests: Sequence[Served]) -> Resources:
    return Resources(
        uplink_nbytes=_sum(requests, "uplink_nbytes"),
        downlink_nbytes=_sum(requests, "downlink_nbytes"),
        uplink_messages=_sum(requests, "uplink_messages"),
        device_busy_s=sum(request.device_busy_s for request in requests),
        cloud_busy_s=sum(request.cloud_busy_s for request in requests),
        cloud_wait_s=sum(request.cloud_wait_s for request in requests),
        cloud_rows=_sum(requests, "cloud_rows"),
        device_j_per_token=_j_per_token(requests, "device_energy_j"),
        cloud_j_per_token=_j_per_token(requests, "cloud_energy_j"),
    )


def _j_per_token(requests: Sequence[Served], name: str) -> float | None:
    energies: list[float | None] = [getattr(request, name) for request in requests]
    known = [energy for energy in energies if energy is not None]
    tokens = sum(len(request.tokens) for request in requests)
    return sum(known) / tokens if tokens and len(known) == len(energies) else None


def _quality(requests: Sequence[Served]) -> Quality:
    tasks = sorted({request.task for request in requests if request.quality is not None})
    by_task = {task: _mean([request.quality for request in requests if request.task == task]) for task in tasks}
    return Quality(
        _mean([request.quality for request in requests]),
        _mean([request.rouge_1 for request in requests]),
        {task: value for task, value in by_task.items() if value is not None},
    )


def _origins(requests: Sequence[Served]) -> dict[str, int]:
    counts = Counter(origin for request in requests for origin in request.origins)
    return {origin: counts[origin] for origin in ORIGINS}


def _sum(requests: Sequence[Served], name: str) -> int:
    return sum(getattr(request, name) for request in requests)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _flat(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}/")
        elif value is not None:
            yield f"{prefix}{key}", float(value)
