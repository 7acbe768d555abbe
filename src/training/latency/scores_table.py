"""How good a fit is, as WISP's Table 7 says it: the paper's own fit, and the one that is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from training.latency.profiled import Profiled

FITS = {"Eq. 19, least squares": "ordinary_least_squares", "as used": ""}
"""The paper's form and solution, and ours: further terms, least relative error, nothing below 0."""

Rows = dict[str, dict[str, dict[str, Any]]]


def scores(models: Sequence[Profiled]) -> Rows:
    """Rows by model and fit: training set, test set, and what cross-validation says."""
    return {
        f"{model.name}: {name}": _scores(model.node[key] if key else model.node)
        for model in models
        for name, key in FITS.items()
    }


def _scores(fit: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    folds = fit["folds"]
    rows = {"training set": dict(fit["fitted"]), "test set": dict(fit["held_out"])}
    return {
        **rows,
        "cross-validation": {
            "r2": folds["r2"],
            "r2_deviation": folds["r2_deviation"],
            "mape": folds["mape"],
            "configurations": fit["fitted"]["configurations"],
        },
        "training minus test": {"r2": fit["fitted"]["r2"] - fit["held_out"]["r2"]},
    }
