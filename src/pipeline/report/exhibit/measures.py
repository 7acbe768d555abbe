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
from pipeline.report.cost import CLOUD_WROTE
from pipeline.report.records import Served
from pipeline.report.slo import met

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STAGE = "stage/"
"""Metrics of a stage's own: `stage/NAME/METRIC`."""
_BY_TASK = "quality/by_task/"
_SLO, _VIOLATION = "slo/", "/violation_rate"
Part: TypeAlias = str | Callable[[Served], float | None]
"""What of a request: an attribute, or a function of it."""


@dataclass(frozen=True)
class Measure:
    """`sums` of a request, and what the metric is `of` their totals (last axis)."""

    sums: Callable[[Served], tuple[float, ...]]
    of: Callable[[NDArray[np.float64]], NDArray[np.float64]]


def measure(metric: str) -> Measure | None:
    """How a metric is resampled; None where it is no function of sums: percentiles, throughput, a stage's numbers."""
    if metric.startswith(_BY_TASK):
        task = metric.removeprefix(_BY_TASK)
        return _mean(lambda request: request.quality if request.task == task else None)
    if metric.startswith(_SLO) and metric.endswith(_VIOLATION):
        name = metric.removeprefix(_SLO).removesuffix(_VIOLATION)
        return _mean(lambda request: float(not met(request)) if request.slo == name else None)
    return _MEASURES.get(metric)


def _ratio(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    ratio: NDArray[np.float64] = totals[..., 0] / totals[..., 1]
    return ratio


def _product(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    return _ratio(totals[..., :2]) * _ratio(totals[..., 2:])


def _mean(part: Part) -> Measure:
    """Over the requests that have it."""

    def sums(request: Served) -> tuple[float, ...]:
        found = _of(request, part)
        return (0.0, 0.0) if found is None else (found, 1.0)

    return Measure(sums, _ratio)


def _share(part: Part, whole: Part) -> Measure:
    return Measure(lambda request: (_of(request, part) or 0.0, _of(request, whole) or 0.0), _ratio)


def _cost(part: Part) -> Measure:
    """Mean TBT times a share of the tokens."""
    gaps, tokens = _mean("mean_tbt_s"), _share(part, _tokens)
    return Measure(lambda request: (*gaps.sums(request), *tokens.sums(request)), _product)


def _of(request: Served, part: Part) -> float | None:
    found: float | None = getattr(request, part) if isinstance(part, str) else part(request)
    return found


def _tokens(request: Served) -> float:
    return len(request.tokens)


def _written(request: Served) -> float:
    return sum(origin in CLOUD_WROTE for origin in request.origins)


def _with_cloud(request: Served) -> float:
    return _written(request) + request.origins.count("accepted")


def _computed(request: Served) -> float:
    return request.sent + _written(request)


def _added(request: Served) -> float:
    return request.accepted + request.origins.count("corrected") + request.origins.count("bonus")


def _fell(request: Served) -> float:
    return request.sent - request.accepted


def _looked_at(request: Served) -> float:
    return request.drafted + request.discarded


_TOTALS = (
    "uplink_nbytes", "downlink_nbytes", "uplink_messages", "device_busy_s", "cloud_busy_s", "cloud_wait_s",
    "cloud_rows",
)  # fmt: skip
_TIMES = ("ttft_s", "end_to_end_s", "cloud_wait_s", "token_s", "verification_s")
_MEASURES: Mapping[str, Measure] = {
    "quality/mean": _mean("quality"),
    "quality/rouge_1": _mean("rouge_1"),
    "latency/tbt_s/mean": _mean("mean_tbt_s"),
    "latency/gap_s/mean": _share(lambda request: sum(request.tbt_s), lambda request: len(request.tbt_s)),
    **{f"latency/{name}/mean": _mean(name) for name in _TIMES},
    "offloading/token_share": _share(_with_cloud, _tokens),
    "offloading/chunk_share": _share("chunks_asked", "chunks"),
    "speculation/acceptance_rate": _share("accepted", "sent"),
    "speculation/acceptance_length": _share("accepted", "chunks_asked"),
    "speculation/acceptance_length_with_bonus": _share(_added, "chunks_asked"),
    "speculation/wasted_share": _share("wasted", "drafted"),
    "throughput/violation_rate": _mean(lambda request: float(not met(request)) if request.slo else None),
    "waste/tokens": _share(_fell, "chunks_asked"),
    "waste/wdt_s": Measure(lambda r: (_fell(r), r.chunks_asked, r.draft_s, _looked_at(r)), _product),
    "waste/share": _share(_fell, _looked_at),
    "waste/discarded": _share("discarded", "chunks_asked"),
    "exits/share": _share("exited", "drafted"),
    "exits/depth": _share("depth", "drafted"),
    "ahead/position_hit_rate": _share("position_hits", "guesses"),
    "ahead/hit_rate": _share("hits", "guesses"),
    "stalls/link_share": _share("stalled_link_s", "service_s"),
    "stalls/cloud_share": _share("stalled_cloud_s", "service_s"),
    "resources/device_j_per_token": _share("device_energy_j", _tokens),
    "resources/cloud_j_per_token": _share("cloud_energy_j", _tokens),
    **{f"resources/{name}": _mean(name) for name in _TOTALS},
    "division/device_s": _mean("device_busy_s"),
    "division/elsewhere_s": _mean(cost.apart_s),
    "division/call_s": _share(cost.apart_s, "chunks_asked"),
    "division/device_token_s": _share("device_busy_s", cost.device_tokens),
    "division/cloud_tokens": _mean(cost.cloud_tokens),
    "cost/w_verified": _share(_computed, _tokens),
    "cost/w_written": _share(_written, _tokens),
    "cost/verified_s": _cost(_computed),
    "cost/written_s": _cost(_written),
}


def is_known(metric: str) -> bool:
    """Whether jobs may have a metric of this name."""
    return metric.startswith(STAGE) or any(fnmatchcase(metric, name) for name in names())


@cache
def names() -> tuple[str, ...]:
    """All metrics of `Summary.metrics()`, `*` where the data decide; read from its types."""
    from pipeline.report.summary import Summary

    return tuple(_leaves(Summary, ""))


def _leaves(kind: Any, prefix: str) -> Iterator[str]:
    hints = get_type_hints(kind)
    for one in fields(kind):
        name, hint = prefix + one.name, _bare(hints[one.name])
        if is_dataclass(hint):
            yield from _leaves(hint, f"{name}/")
        else:
            yield f"{name}/*" if get_origin(hint) is dict else name


def _bare(hint: Any) -> Any:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    return next(choice for choice in get_args(hint) if choice is not types.NoneType)
