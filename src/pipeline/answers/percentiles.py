"""Intervals of percentiles of requests, which no sums over prompts give."""

from collections.abc import Sequence
from math import sqrt
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
    """95 % of a bootstrap of the mean over seeds (percentile interval). It draws seeds, then prompts; the requests of a
    prompt stay together. The part of a draw that comes from the seeds drawn is widened by sqrt(R / (R - 1)), as in
    `pipeline.report.estimate`: R drawn seeds vary less than R new ones.

    None where a seed has no request with a value, or its records are gone.
    """
    import numpy as np

    found = definitions.find(metric)
    assert found is not None
    assert isinstance(found.formula, definitions.Distribution)
    if not all(by_seed):
        return None
    attribute, share = found.formula.attribute, SHARES[metric.rpartition("/")[2]]
    prompts = {prompt: place for place, prompt in enumerate(dict.fromkeys(p for own in by_seed for p in own))}
    draw = np.random.default_rng(BOOTSTRAP_SEED).multinomial
    counts = draw(len(prompts), [1 / len(prompts)] * len(prompts), _RESAMPLES)
    counts = np.vstack([np.ones_like(counts[:1]), counts])  # the first row is the sample itself
    by_draw = []
    for own in by_seed:
        pairs = [(value, prompts[p]) for p, requests in own.items() for r in requests for value in _items(r, attribute)]
        if not pairs:
            return None
        values, places = np.array([value for value, _ in pairs]), np.array([place for _, place in pairs])
        order = np.argsort(values)
        weights = np.cumsum(counts[:, places[order]], axis=1)
        by_draw.append(values[order][(weights >= share * weights[:, -1:]).argmax(axis=1)])
    number = len(by_seed)
    shares = draw(number, [1 / number] * number, _RESAMPLES) / number
    sample, *drawn = np.stack(by_draw, axis=1)
    within = (shares * (np.stack(drawn) - sample)).sum(axis=1)
    between = (shares @ sample - sample.mean()) * (sqrt(number / (number - 1)) if number > 1 else 1)
    low, high = np.quantile(sample.mean() + within + between, [0.025, 0.975])
    return float(low), float(high)


def _items(request: Any, attribute: str) -> list[float]:
    value = getattr(request, attribute)
    return value if isinstance(value, list) else [] if value is None else [value]
