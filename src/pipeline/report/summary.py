"""The metrics of a job: computes the formulas of `serving.metrics.definitions` from its records, and resamples them."""

import operator
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.report.records import Records, RequestRecord
from pipeline.report.statistics import Percentiles, percentile
from serving.metrics import definitions
from serving.metrics.definitions import ORIGINS, STATISTICS, Formula

QUALITY = "quality/mean"
_SLA_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_SLA_LIMITS_S = (0.1, 0.2, 0.3, 0.35, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class JobSummary:
    """The metrics of one job that are known, by key."""

    values: Mapping[str, float]

    def __getitem__(self, key: str) -> float | None:
        """The value, or None if it is not known. Raises KeyError for a key that no metric has."""
        if definitions.find(key) is None:
            raise KeyError(key)
        return self.values.get(key)

    def below(self, prefix: str) -> dict[str, float]:
        """The metrics below `prefix`, by the rest of their keys."""
        return {key.removeprefix(prefix): value for key, value in self.values.items() if key.startswith(prefix)}

    def metrics(self) -> dict[str, float]:
        """Every known number: `latency/ttft_s/median`, `cost/generated_s`, ..."""
        return dict(self.values)


def summarise(records: Records) -> JobSummary:
    """The metrics of `records`: those with a formula, then what the run recorded itself."""
    found: dict[str, float] = {}
    for metric in definitions.METRICS:
        for name, value in _values(metric.formula, records, found):
            if value is not None:
                found[metric.key.replace("*", name) if "*" in metric.key else metric.key + name] = float(value)
    meta = records.meta
    recorded = {f"tiers/{name}": tier for name, tier in meta.tiers.items()}
    recorded |= {"overhead": meta.overhead, "estimator": meta.estimator, "partition": meta.partition}
    return JobSummary(
        found | {f"{place}/{name}": value for place, own in recorded.items() for name, value in own.items()}
    )


def _values(formula: Formula, records: Records, known: Mapping[str, float]) -> Iterator[tuple[str, float | None]]:
    """(end of the key or what replaces `*`, value) of each number; `known` are the metrics so far."""
    requests = records.requests
    match formula:
        case definitions.Distribution(attribute):
            spread = Percentiles.of(value for request in requests for value in _items(request, attribute))
            yield from ((f"/{name}", getattr(spread, name)) for name in STATISTICS if spread)
        case definitions.SlaPercentiles(attribute):
            values = _sorted_values(requests, attribute)
            yield from ((f"{100 * share:g}", percentile(values, share)) for share in _SLA_SHARES if values)
        case definitions.SlaShares(attribute):
            values = _sorted_values(requests, attribute)
            yield from ((f"{limit:g}", bisect_right(values, limit) / len(values)) for limit in _SLA_LIMITS_S if values)
        case definitions.Count(attribute, ""):
            yield "", sum(not attribute or getattr(request, attribute) for request in requests)
        case definitions.Count(_, by):
            counts = Counter(name for request in requests for name in _items(request, by))
            yield from ((name, counts[name]) for name in (ORIGINS if by == "origins" else sorted(counts)))
        case definitions.Rate(attribute):
            yield "", _rate(_total(requests, attribute), requests)
        case definitions.BusyPeriods():
            yield "", _mean_busy_s(requests)
        case definitions.CloudUse():
            yield "", _cloud_use(requests, records.meta.cloud_nodes)
        case definitions.CloudCost(share, token_s):
            factor = records.meta.packing_factor
            whole = factor is not None and {token_s, share} <= known.keys()
            yield "", known[token_s] / factor.value * known[share] if factor and whole else None
        case definitions.Total(attribute, all_known):
            yield "", None if all_known and not _is_known(requests, attribute) else _total(requests, attribute)
        case definitions.Mean(attribute, by) if by:
            names = {getattr(request, by) for request in requests if getattr(request, attribute) is not None}
            yield from ((name, _combined(formula, requests, name)) for name in sorted(names))
        case definitions.Ratio(part, _, all_known, empty):
            known_part = not all_known or _is_known(requests, part)
            found = _combined(formula, requests) if known_part else None
            yield "", empty if found is None else found
        case _:
            yield "", _combined(formula, requests)


def _items(request: RequestRecord, attribute: str) -> list[Any]:
    """The attribute's items if it is a list, else its value if that is known."""
    found = getattr(request, attribute)
    return found if isinstance(found, list) else [] if found is None else [found]


def _total(requests: Sequence[RequestRecord], attribute: str) -> float:
    return sum(getattr(request, attribute) or 0 for request in requests)


def _is_known(requests: Sequence[RequestRecord], attribute: str) -> bool:
    return all(getattr(request, attribute) is not None for request in requests)


def _sorted_values(requests: Sequence[RequestRecord], attribute: str) -> list[float]:
    return sorted(value for request in requests for value in _items(request, attribute))


def _rate(total: float, requests: Sequence[RequestRecord]) -> float:
    ends_s = [request.ended_s for request in requests if request.ended_s is not None]
    duration_s = max(ends_s, default=0.0) - min(request.arrived_s for request in requests)
    return total / duration_s if duration_s > 0 else 0.0


def _cloud_use(requests: Sequence[RequestRecord], nodes: int) -> float | None:
    covered_s, _ = _busy_periods(requests)
    return _total(requests, "cloud_busy_s") / covered_s / nodes if covered_s and nodes else None


def _mean_busy_s(requests: Sequence[RequestRecord]) -> float:
    total_s, periods = _busy_periods(requests)
    return total_s / max(1, periods)


def _busy_periods(requests: Sequence[RequestRecord]) -> tuple[float, int]:
    """Seconds that the requests cover together, and the number of periods without a gap."""
    periods, total_s, until_s = 0, 0.0, float("-inf")
    for begin_s, end_s in sorted((r.arrived_s, r.ended_s) for r in requests if r.ended_s is not None):
        periods += begin_s > until_s
        total_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return total_s, periods


def _combined(formula: Formula, requests: Sequence[RequestRecord], group: str = "") -> float | None:
    """The metric itself; None where it would divide by 0."""
    found = _smooth(formula, group)
    try:
        return found.combine(*map(sum, zip(*map(found.sums, requests), strict=True))) if found else None
    except ZeroDivisionError:
        return None


@dataclass(frozen=True)
class SmoothMetric:
    """A metric that is `combine` of the totals of `sums`, up to a factor that resampling leaves alone.

    Such factors are the packing factor of a cost and the number of requests of a total. `combine` takes a number, or an
    array, for each sum.
    """

    sums: Callable[[RequestRecord], tuple[float, ...]]
    combine: Callable[..., Any]


def smooth_metric(key: str) -> SmoothMetric | None:
    """The metric as a function of sums; None for one that is not: percentiles, rates, counts, a stage's numbers."""
    metric = definitions.find(key)
    if metric is None or key.endswith(("/median", "/p90", "/p99")):
        return None
    before, _, after = metric.key.partition("*")
    return _smooth(metric.formula, key.removeprefix(before).removesuffix(after))


def request_mean(key: str, requests: Sequence[RequestRecord]) -> float | None:
    """A smooth metric of these requests; None where it is not known. Raises KeyError for a key that no metric has."""
    metric = definitions.find(key)
    if metric is None:
        raise KeyError(key)
    return _combined(metric.formula, requests) if requests else None


def _smooth(formula: Formula, group: str) -> SmoothMetric | None:
    match formula:
        case definitions.Mean(attribute, by) if by:
            return _mean(lambda request: _items(request, attribute) if getattr(request, by) == group else [])
        case definitions.Mean(attribute) | definitions.Distribution(attribute) | definitions.Total(attribute):
            return _mean(lambda request: _items(request, attribute))
        case definitions.Ratio(part, whole):
            return SmoothMetric(lambda request: _part_and_whole(request, part, whole), operator.truediv)
        case definitions.Combination(attributes, combine):
            return SmoothMetric(lambda request: tuple(getattr(request, name) for name in attributes), combine)
        case definitions.CloudCost(share, token_s):
            time, tokens = smooth_metric(token_s), smooth_metric(share)
            assert time is not None
            assert tokens is not None
            return SmoothMetric(lambda request: time.sums(request) + tokens.sums(request), _product)
    return None


def _mean(items: Callable[[RequestRecord], list[Any]]) -> SmoothMetric:
    return SmoothMetric(lambda request: (sum(found := items(request)), len(found)), operator.truediv)


def _part_and_whole(request: RequestRecord, part: str, whole: str) -> tuple[float, float]:
    found = getattr(request, part)
    return (0.0, 0.0) if found is None else (found, getattr(request, whole) or 0.0)


def _product(a: Any, b: Any, c: Any, d: Any) -> Any:
    return a / b * (c / d)
