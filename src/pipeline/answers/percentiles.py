"""Percentiles of requests with resamples, which no sums over prompts give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.report.estimate import Estimate, Resamples, prompt_counts
from pipeline.report.text_reference import RequestsByPrompt
from serving.metrics import definitions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHARES = {"median": 0.5, "p90": 0.9, "p99": 0.99}


def is_percentile(metric: str) -> bool:
    found = definitions.find(metric)
    return (
        metric.rpartition("/")[2] in SHARES
        and found is not None
        and isinstance(found.formula, definitions.Distribution)
    )


def estimate_percentile(metric: str, value: float, replicate: str, by_prompt: RequestsByPrompt) -> Estimate:
    """A job's value of a percentile. A resample draws prompts; the requests of a prompt stay together.

    Without resamples where no request has a value, or the records are gone.
    """
    import numpy as np

    found = definitions.find(metric)
    assert found is not None
    assert isinstance(found.formula, definitions.Distribution)
    attribute, prompts = found.formula.attribute, tuple(by_prompt)
    pairs = sorted(
        (one, place) for place, own in enumerate(by_prompt.values()) for request in own
        for one in _items(request, attribute)
    )  # fmt: skip
    if not pairs:
        return Estimate({replicate: value})
    values, places = np.array([one for one, _ in pairs]), np.array([place for _, place in pairs])
    ranks = np.cumsum(prompt_counts(prompts)[:, places], axis=1)
    drawn = _percentiles(values, ranks, SHARES[metric.rpartition("/")[2]])
    return Estimate({replicate: value}, {replicate: Resamples(drawn, prompts)})


def _percentiles(values: NDArray[np.float64], ranks: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """The percentile of each resample, as `statistics.percentile` takes it; nan for one without a value.

    ranks    [resamples, values]: how many values of a resample stand up to the place of each of the ascending `values`
    """
    import numpy as np

    last = ranks[:, -1] - 1
    place = share * last
    low, high = np.floor(place), np.minimum(np.floor(place) + 1, last)
    below, above = (values[(ranks > one[:, None]).argmax(axis=1)] for one in (low, high))
    return np.where(last < 0, np.nan, below + (above - below) * (place - low))


def _items(request: Any, attribute: str) -> list[float]:
    value = getattr(request, attribute)
    return value if isinstance(value, list) else [] if value is None else [value]
