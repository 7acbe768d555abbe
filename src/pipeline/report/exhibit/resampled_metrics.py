"""Metrics that can be resampled: each a smooth function of sums over requests; and the names of all metrics there are.

A function is right up to a factor that resampling leaves alone, such as the packing factor of a cost or a number of
requests: the job's own metric sets it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from pipeline.report import cost
from pipeline.report.cost import CLOUD_ORIGINS
from pipeline.report.records import RequestRecord
from pipeline.report.slo import meets_slo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STAGE_PREFIX = "stage/"
"""Metrics of a stage's own: `stage/NAME/METRIC`."""
_BY_TASK_PREFIX = "quality/by_task/"
_SLO_PREFIX, _VIOLATION_SUFFIX = "slo/", "/violation_rate"
RequestValue: TypeAlias = str | Callable[[RequestRecord], float | None]
"""What of a request: an attribute, or a function of it."""


@dataclass(frozen=True)
class ResampledMetric:
    """`sums` of a request, and what the metric is `combine` their totals (last axis)."""

    sums: Callable[[RequestRecord], tuple[float, ...]]
    combine: Callable[[NDArray[np.float64]], NDArray[np.float64]]


def resampled_metric(metric: str) -> ResampledMetric | None:
    """How a metric is resampled; None where it is no function of sums: percentiles, throughput, a stage's numbers."""
    if metric.startswith(_BY_TASK_PREFIX):
        task = metric.removeprefix(_BY_TASK_PREFIX)
        return _mean(lambda request: request.quality if request.task == task else None)
    if metric.startswith(_SLO_PREFIX) and metric.endswith(_VIOLATION_SUFFIX):
        name = metric.removeprefix(_SLO_PREFIX).removesuffix(_VIOLATION_SUFFIX)
        return _mean(lambda request: float(not meets_slo(request)) if request.slo == name else None)
    return _METRICS.get(metric)


def _ratio(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    ratio: NDArray[np.float64] = totals[..., 0] / totals[..., 1]
    return ratio


def _product(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    return _ratio(totals[..., :2]) * _ratio(totals[..., 2:])


def _mean(part: RequestValue) -> ResampledMetric:
    """Over the requests that have it."""

    def sums(request: RequestRecord) -> tuple[float, ...]:
        found = _value(request, part)
        return (0.0, 0.0) if found is None else (found, 1.0)

    return ResampledMetric(sums, _ratio)


def _share(part: RequestValue, whole: RequestValue) -> ResampledMetric:
    return ResampledMetric(lambda request: (_value(request, part) or 0.0, _value(request, whole) or 0.0), _ratio)


def _cost(part: RequestValue) -> ResampledMetric:
    """Mean TBT times a share of the tokens."""
    gaps, tokens = _mean("mean_tbt_s"), _share(part, _num_tokens)
    return ResampledMetric(lambda request: (*gaps.sums(request), *tokens.sums(request)), _product)


def _value(request: RequestRecord, part: RequestValue) -> float | None:
    found: float | None = getattr(request, part) if isinstance(part, str) else part(request)
    return found


def _num_tokens(request: RequestRecord) -> float:
    return len(request.tokens)


def _num_generated(request: RequestRecord) -> float:
    return sum(origin in CLOUD_ORIGINS for origin in request.origins)


def _num_offloaded(request: RequestRecord) -> float:
    return _num_generated(request) + request.origins.count("accepted")


def _num_verified_or_generated(request: RequestRecord) -> float:
    return request.drafts_verified + _num_generated(request)


def _num_accepted_with_bonus(request: RequestRecord) -> float:
    return request.drafts_accepted + request.origins.count("corrected") + request.origins.count("bonus")


def _num_rejected(request: RequestRecord) -> float:
    return request.drafts_verified - request.drafts_accepted


def _num_drafted_or_discarded(request: RequestRecord) -> float:
    return request.drafted + request.discarded_tokens


_RESOURCE_METRICS = (
    "uplink_nbytes", "downlink_nbytes", "uplink_messages", "device_busy_s", "cloud_busy_s", "cloud_queue_s",
    "cloud_forward_tokens",
)  # fmt: skip
_LATENCY_METRICS = ("ttft_s", "end_to_end_s", "cloud_queue_s", "service_s_per_token", "verification_s")
_METRICS: Mapping[str, ResampledMetric] = {
    "quality/mean": _mean("quality"),
    "quality/rouge_1": _mean("rouge_1"),
    "latency/tbt_s/mean": _mean("mean_tbt_s"),
    "latency/itl_s/mean": _share(lambda request: sum(request.tbt_s), lambda request: len(request.tbt_s)),
    **{f"latency/{name}/mean": _mean(name) for name in _LATENCY_METRICS},
    "offloading/token_share": _share(_num_offloaded, _num_tokens),
    "offloading/chunk_share": _share("chunks_offloaded", "chunks"),
    "speculation/acceptance_rate": _share("drafts_accepted", "drafts_verified"),
    "speculation/acceptance_length": _share("drafts_accepted", "chunks_offloaded"),
    "speculation/acceptance_length_with_bonus": _share(_num_accepted_with_bonus, "chunks_offloaded"),
    "speculation/wasted_share": _share("drafts_unused", "drafted"),
    "throughput/slo_violation_rate": _mean(lambda request: float(not meets_slo(request)) if request.slo else None),
    "waste/rejected_tokens": _share(_num_rejected, "chunks_offloaded"),
    "waste/wdt_s": ResampledMetric(
        lambda r: (_num_rejected(r), r.chunks_offloaded, r.draft_s, _num_drafted_or_discarded(r)), _product
    ),
    "waste/time_share": _share(_num_rejected, _num_drafted_or_discarded),
    "waste/discarded_tokens": _share("discarded_tokens", "chunks_offloaded"),
    "early_exit/token_share": _share("early_exit_tokens", "drafted"),
    "early_exit/layer_share": _share("layer_share_sum", "drafted"),
    "lookahead/position_hit_rate": _share("lookahead_position_hits", "lookahead_attempts"),
    "lookahead/hit_rate": _share("lookahead_hits", "lookahead_attempts"),
    "stalls/link_share": _share("link_stall_s", "service_s"),
    "stalls/cloud_share": _share("cloud_stall_s", "service_s"),
    "resources/device_j_per_token": _share("device_energy_j", _num_tokens),
    "resources/cloud_j_per_token": _share("cloud_energy_j", _num_tokens),
    **{f"resources/{name}": _mean(name) for name in _RESOURCE_METRICS},
    "breakdown/device_s": _mean("device_busy_s"),
    "breakdown/remote_s": _mean(cost.remote_s),
    "breakdown/remote_s_per_call": _share(cost.remote_s, "chunks_offloaded"),
    "breakdown/device_s_per_token": _share("device_busy_s", cost.device_tokens),
    "breakdown/cloud_tokens": _mean(cost.cloud_tokens),
    "cost/w_verified": _share(_num_verified_or_generated, _num_tokens),
    "cost/w_generated": _share(_num_generated, _num_tokens),
    "cost/verified_s": _cost(_num_verified_or_generated),
    "cost/generated_s": _cost(_num_generated),
}


def is_known_metric(metric: str) -> bool:
    """Whether jobs may have a metric of this name."""
    return metric.startswith(STAGE_PREFIX) or any(fnmatchcase(metric, name) for name in metric_names())


@cache
def metric_names() -> tuple[str, ...]:
    """All metrics of `JobSummary.metrics()`, `*` where the data decide; read from its types."""
    from pipeline.report.summary import JobSummary

    return tuple(_field_names(JobSummary, ""))


def _field_names(kind: Any, prefix: str) -> Iterator[str]:
    hints = get_type_hints(kind)
    for one in fields(kind):
        name, hint = prefix + one.name, _without_none(hints[one.name])
        if is_dataclass(hint):
            yield from _field_names(hint, f"{name}/")
        else:
            yield f"{name}/*" if get_origin(hint) is dict else name


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    return next(choice for choice in get_args(hint) if choice is not types.NoneType)
