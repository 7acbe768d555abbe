"""What is left over of a fit: residuals of training and test set (WISP, Fig. 9), and errors by regime (Fig. 11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from serving.hardware.latency import COEFFICIENTS, Latency, load
from training.latency.equations import Array, terms
from training.latency.grid import Catalogue
from training.latency.profiled import Points, Profiled, components, regime
from training.latency.score import score
from training.latency.scores_table import Rows
from training.latency.shape import Shape

ENVELOPE = 0.1
"""Relative error within which WISP, Fig. 9a has most of its samples."""


def residuals(models: Sequence[Profiled]) -> Rows:
    """Rows by model: the fit that is used on its training and its test set; lists have a number a configuration."""
    return {
        model.name: {name: _residuals(points, model.coefficients) for name, points in model.sets.items()}
        for model in models
    }


def _residuals(points: Points, b: Array) -> dict[str, Any]:
    off = points.terms @ b - points.seconds
    relative, found = off / points.seconds, score(points.terms, points.seconds, b)
    return {
        "r2": found.r2,
        "mape": np.abs(relative).tolist(),
        "within": (np.abs(relative) <= ENVELOPE).astype(float).tolist(),
        "bias_s": off.tolist(),
        "bias": relative.tolist(),
        "below": (off < 0).astype(float).tolist(),
        "low": float(np.quantile(relative, 0.05)),
        "high": float(np.quantile(relative, 0.95)),
        "most_below_s": float(max(0.0, -off.min())),
        "most_below": float(max(0.0, -relative.min())),
    }


def regimes(models: Sequence[Profiled]) -> Rows:
    """Rows by model and set: errors by regime, each part's share of the prediction, which part is the largest."""
    return {
        f"{model.name}: {name}": {
            kind: _errors(own, model.coefficients) | _shares(own.terms, model.coefficients)
            for kind, own in points.by_regime().items()
        }
        for model in models
        for name, points in model.sets.items()
    }


def _errors(points: Points, b: Array) -> dict[str, Any]:
    off = np.abs(points.terms @ b - points.seconds)
    return {
        "mae_s": off.tolist(),
        "p95_s": float(np.quantile(off, 0.95)),
        "max_s": float(off.max()),
        "mape": (off / points.seconds).tolist(),
    }


def _shares(x: Array, b: Array) -> dict[str, Any]:
    parts = components(x, b)
    whole = np.sum(list(parts.values()), axis=0)
    names = list(parts)
    largest = Counter(names[i] for i in np.argmax([parts[name] for name in names], axis=0).tolist())
    return {
        "configurations": len(whole),
        **{name: (seconds / whole).tolist() for name, seconds in parts.items()},
        "largest": ", ".join(f"{name} {count}" for name, count in largest.most_common()),
    }


def implied(latency: Latency, catalogue: Catalogue, longest: int) -> dict[str, dict[str, Any]]:
    """By regime, what coefficients that somebody else printed say of the catalogue's whole grids, head left out."""
    rows = {regime(name): [_terms(shape) for shape in grid(longest)] for name, grid in catalogue.grids.items()}
    b = np.array([getattr(latency, name) for name in COEFFICIENTS])
    return {kind: _shares(np.array(own, dtype=np.float64), b) for kind, own in rows.items()}


def _terms(shape: Shape) -> tuple[float, ...]:
    return terms([load(1, [(part.cached, part.new) for part in shape.parts])])
