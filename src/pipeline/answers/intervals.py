"""Intervals of a metric over the records of one configuration's cells: prompts are resampled, seeds stay together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.report.records import RequestRecord, read_requests
from pipeline.report.summary import smooth_metric
from serving.metrics import definitions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHARES = {"median": 0.5, "p90": 0.9, "p99": 0.99}
_RESAMPLES = 400


@dataclass(frozen=True)
class Measured:
    """A value with its 95 % interval; without bounds where the metric cannot be resampled."""

    value: float
    low: float | None = None
    high: float | None = None


def read_by_prompt(artifacts: Sequence[str]) -> dict[str, list[RequestRecord]]:
    """The requests of all cells by their prompt. Raises UserError where records are gone."""
    found: dict[str, list[RequestRecord]] = {}
    for artifact in artifacts:
        for request in read_requests(Path(artifact)):
            found.setdefault(request.prompt_id or request.request, []).append(request)
    return found


def measure(metric: str, value: float, by_prompt: Mapping[str, Sequence[RequestRecord]], seed: int = 0) -> Measured:
    """The metric's value with the interval of a bootstrap over prompts (percentile interval, 400 resamples)."""
    import numpy as np

    counts = _resampled_counts(len(by_prompt), seed)
    found = _resampled_percentiles(metric, by_prompt, counts)
    if found is None:
        found = _resampled_sums(metric, value, by_prompt, counts)
    if found is None or not np.isfinite(found).all():
        return Measured(value)
    low, high = np.quantile(found, [0.025, 0.975])
    return Measured(value, min(value, float(low)), max(value, float(high)))


def _resampled_counts(prompts: int, seed: int) -> "NDArray[np.float64]":
    """How often each prompt is drawn, by resample: [resamples, prompts]."""
    import numpy as np

    return np.random.default_rng(seed).multinomial(prompts, [1 / prompts] * prompts, _RESAMPLES).astype(np.float64)


def _resampled_percentiles(
    metric: str, by_prompt: Mapping[str, Sequence[RequestRecord]], counts: "NDArray[np.float64]"
) -> "NDArray[np.float64] | None":
    """None for a metric that is no percentile."""
    import numpy as np

    share, found = SHARES.get(metric.rpartition("/")[2]), definitions.find(metric)
    if share is None or found is None or not isinstance(found.formula, definitions.Distribution):
        return None
    pairs = [
        (value, place)
        for place, requests in enumerate(by_prompt.values())
        for request in requests
        for value in _items(getattr(request, found.formula.attribute))
    ]
    if not pairs:
        return None
    values, places = np.array([value for value, _ in pairs]), np.array([place for _, place in pairs])
    order = np.argsort(values)
    weights = np.cumsum(counts[:, places[order]], axis=1)
    first = (weights >= share * weights[:, -1:]).argmax(axis=1)
    quantiles: NDArray[np.float64] = values[order][first]
    return quantiles


def _items(value: Any) -> list[float]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _resampled_sums(
    metric: str, value: float, by_prompt: Mapping[str, Sequence[RequestRecord]], counts: "NDArray[np.float64]"
) -> "NDArray[np.float64] | None":
    """None for a metric that is no function of sums."""
    import numpy as np

    found = smooth_metric(metric)
    if found is None:
        return None
    sums = np.array([np.sum([found.sums(request) for request in requests], axis=0) for requests in by_prompt.values()])
    with np.errstate(all="ignore"):
        own = float(found.combine(*sums.sum(axis=0)))
        resampled: NDArray[np.float64] = np.asarray(found.combine(*(counts @ sums).T), dtype=np.float64)
    return resampled * (value / own) if own and np.isfinite(own) else resampled
