"""Intervals of percentiles of requests, which no sums over prompts give."""

from collections.abc import Sequence
from typing import Any

from pipeline.report.job_summary import BOOTSTRAP_SEED
from pipeline.report.text_reference import RequestsByPrompt
from serving.metrics import definitions

SHARES = {"median": 0.5, "p90": 0.9, "p99": 0.99}
_RESAMPLES = 400


def is_percentile(metric: str) -> bool:
    found = definitions.find(metric)
    return (
        metric.rpartition("/")[2] in SHARES
        and found is not None
        and isinstance(found.formula, definitions.Distribution)
    )


def percentile_interval(metric: str, by_seed: Sequence[RequestsByPrompt]) -> tuple[float, float] | None:
    """95 % of a bootstrap over prompts (percentile interval); the requests of a prompt stay together, over all seeds.

    None where no request has a value.
    """
    import numpy as np

    found = definitions.find(metric)
    assert found is not None
    assert isinstance(found.formula, definitions.Distribution)
    prompts = {prompt: place for place, prompt in enumerate(dict.fromkeys(p for own in by_seed for p in own))}
    pairs = [
        (value, prompts[prompt])
        for own in by_seed
        for prompt, requests in own.items()
        for request in requests
        for value in _items(getattr(request, found.formula.attribute))
    ]
    if not pairs:
        return None
    values, places = np.array([value for value, _ in pairs]), np.array([place for _, place in pairs])
    order = np.argsort(values)
    draws = np.random.default_rng(BOOTSTRAP_SEED).multinomial(
        len(prompts), [1 / len(prompts)] * len(prompts), _RESAMPLES
    )
    weights = np.cumsum(draws[:, places[order]], axis=1)
    first = (weights >= SHARES[metric.rpartition("/")[2]] * weights[:, -1:]).argmax(axis=1)
    low, high = np.quantile(values[order][first], [0.025, 0.975])
    return float(low), float(high)


def _items(value: Any) -> list[float]:
    return value if isinstance(value, list) else [] if value is None else [value]
