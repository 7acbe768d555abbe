"""Rows of WISP's Table 8, Fig. 2 and Fig. 3, as an exhibit reads them: `{group: {row: {metric: cell}}}`."""

from __future__ import annotations

from typing import Literal

import numpy as np

from serving.core.scores import SCORES
from training.synera.alignment import Cell, ratio
from training.wisp.samples import Samples
from training.wisp.windows import Flags, Floats, Ints

BINS = 10
Part = Literal["counts", "acceptance", "correlation"]
Row = dict[str, Cell | float]


def rows(samples: Samples, part: Part) -> dict[str, dict[str, Row]]:
    """counts: of both kinds; acceptance: by tenths of each score; correlation: Pearson's, of each score with it."""
    if part == "counts":
        return {"sample": _counts(samples)}
    if part == "correlation":
        return {"correlation": _correlations(samples)}
    return {name: _by_tenth(samples, i) for i, name in enumerate(SCORES)}


def _counts(samples: Samples) -> dict[str, Row]:
    everything = np.ones(len(samples), np.bool_)
    kinds = {"total": everything, "accepted": samples.accepted, "rejected": ~samples.accepted}
    counts: dict[str, Row] = {
        name: {"count": float(kind.sum()), "fraction": _share(samples, kind, everything)}
        for name, kind in kinds.items()
    }
    return counts | {"features": {"count": float(len(SCORES))}}


def _by_tenth(samples: Samples, i: int) -> dict[str, Row]:
    """Ten parts of as many tokens each, lowest first; equal values stay together, so that there may be fewer."""
    values = samples.features[:, i].astype(np.float64)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1]))
    place = np.searchsorted(edges, values, "right")
    return {
        f"tenth {part + 1}": {
            "value": float(values[place == part].mean()),
            "count": float((place == part).sum()),
            "acceptance": _share(samples, samples.accepted & (place == part), place == part),
        }
        for part in np.unique(place).tolist()
    }


def _correlations(samples: Samples) -> dict[str, Row]:
    session, n = _numbered(samples)
    stood = samples.accepted.astype(np.float64)
    return {
        name: {"r": pearson(samples.features[:, i].astype(np.float64), stood, session, n)}
        for i, name in enumerate(SCORES)
    }


def pearson(a: Floats, b: Floats, session: Ints, sessions: int) -> Cell:
    """Pearson's correlation as a number for each session, whose mean it is and whose spread is its own when sessions
    are resampled, to first order; None where one of both never changes.
    """
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    x, y = ((each - each.mean()) / each.std() for each in (a, b))
    r = float((x * y).mean())
    influence = x * y - r * (x**2 + y**2) / 2
    return list((r + np.bincount(session, influence, sessions) * sessions / len(a)).tolist())


def _share(samples: Samples, of: Flags, among: Flags) -> Cell:
    return ratio(of, among, *_numbered(samples))


def _numbered(samples: Samples) -> tuple[Ints, int]:
    names, session = np.unique(samples.session, return_inverse=True)
    return session.astype(np.int64), len(names)
