"""Rows of WISP's Table 8, Fig. 2 and Fig. 3, as an exhibit reads them: `{group: {row: {metric: cell}}}`."""

from __future__ import annotations

from typing import Literal

import numpy as np

from serving.core.scores import LOGIT_SCORES
from training.synera.alignment import ClusterValues, clustered_ratio
from training.wisp.samples import TokenSamples
from training.wisp.windows import Flags, Floats, Ints

BINS = 10
SampleStatistic = Literal["counts", "acceptance", "correlation"]
MetricRow = dict[str, ClusterValues | float]


def rows(samples: TokenSamples, statistic: SampleStatistic) -> dict[str, dict[str, MetricRow]]:
    """counts: of both kinds; acceptance: by tenths of each score; correlation: Pearson's, of each score with it."""
    if statistic == "counts":
        return {"sample": _counts(samples)}
    if statistic == "correlation":
        return {"correlation": _correlations(samples)}
    return {name: _by_decile(samples, i) for i, name in enumerate(LOGIT_SCORES)}


def _counts(samples: TokenSamples) -> dict[str, MetricRow]:
    everything = np.ones(len(samples), np.bool_)
    kinds = {"total": everything, "accepted": samples.accepted, "rejected": ~samples.accepted}
    counts: dict[str, MetricRow] = {
        name: {"count": float(kind.sum()), "fraction": _share(samples, kind, everything)}
        for name, kind in kinds.items()
    }
    return counts | {"features": {"count": float(len(LOGIT_SCORES))}}


def _by_decile(samples: TokenSamples, feature: int) -> dict[str, MetricRow]:
    """Ten parts of as many tokens each, lowest first; equal values stay together, so that there may be fewer."""
    values = samples.features[:, feature].astype(np.float64)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1]))
    place = np.searchsorted(edges, values, "right")
    return {
        f"tenth {part + 1}": {
            "value": float(values[place == part].mean()),
            "count": float((place == part).sum()),
            "acceptance_rate": _share(samples, samples.accepted & (place == part), place == part),
        }
        for part in np.unique(place).tolist()
    }


def _correlations(samples: TokenSamples) -> dict[str, MetricRow]:
    session, n = _session_indices(samples)
    stood = samples.accepted.astype(np.float64)
    return {
        name: {"r": clustered_pearson(samples.features[:, i].astype(np.float64), stood, session, n)}
        for i, name in enumerate(LOGIT_SCORES)
    }


def clustered_pearson(a: Floats, b: Floats, session: Ints, num_sessions: int) -> ClusterValues:
    """Pearson's correlation as a number for each session, whose mean it is and whose spread is its own when sessions
    are resampled, to first order; None where one of both never changes.
    """
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    x, y = ((each - each.mean()) / each.std() for each in (a, b))
    r = float((x * y).mean())
    influence = x * y - r * (x**2 + y**2) / 2
    return list((r + np.bincount(session, influence, num_sessions) * num_sessions / len(a)).tolist())


def _share(samples: TokenSamples, selected: Flags, among: Flags) -> ClusterValues:
    return clustered_ratio(selected, among, *_session_indices(samples))


def _session_indices(samples: TokenSamples) -> tuple[Ints, int]:
    names, session = np.unique(samples.session, return_inverse=True)
    return session.astype(np.int64), len(names)
