"""A profile read back from its report: what was measured of each model, and what the fit says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.hardware.latency import COEFFICIENTS
from training.latency.artifact import REPORT_FILE
from training.latency.fit import Array

COMPONENTS = {
    "linear": ("a_s",),
    "interactions": ("b_compute_s",),
    "cached": ("b_read_s",),
    "constant": ("c_s", "wake_s"),
    "sessions": ("session_s",),
    "lm_head": ("head_token_s", "head_c_s"),
}
"""Coefficients by the part of a forward that they time."""


@dataclass(frozen=True)
class TimingPoints:
    """Some configurations: `terms` of shape (configurations, coefficients), `seconds` of (configurations)."""

    terms: Array
    seconds: Array
    regimes: Sequence[str]
    """compute-bound, memory-bound or mixed; whatever a file of one's own says."""

    def select(self, chosen: NDArray[np.bool_]) -> TimingPoints:
        regimes = [regime for regime, kept in zip(self.regimes, chosen, strict=True) if kept]
        return TimingPoints(self.terms[chosen], self.seconds[chosen], regimes)

    def by_regime(self) -> dict[str, TimingPoints]:
        names = np.array(self.regimes)
        return {name: self.select(names == name) for name in sorted(dict.fromkeys(self.regimes))}


@dataclass(frozen=True)
class LoadedProfile:
    """One model of a profile: `report` is its part of the report, `sets` its configurations."""

    name: str
    report: Mapping[str, Any]
    sets: Mapping[str, TimingPoints]
    """training set, on which was fitted, and test set, which was held out."""

    @property
    def coefficients(self) -> Array:
        return np.array([self.report["coefficients"][name] for name in COEFFICIENTS])

    def predict_s(self, points: TimingPoints) -> Array:
        """Seconds."""
        return points.terms @ self.coefficients


def read_profile(profile: Path) -> list[LoadedProfile]:
    """The models of a profile's artifact. Raises ValueError for a folder without a report."""
    file = profile / REPORT_FILE
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise ValueError(f"{file} is no report of a profile ({problem}); give the artifact of such a stage.") from None
    return [_loaded_profile(name, node) for name, node in report.items() if name not in ("machine", "options")]


def components(terms: Array, coefficients: Array) -> dict[str, Array]:
    """Seconds of each part, by `PARTS`, each of shape (configurations)."""
    seconds = dict(zip(COEFFICIENTS, (terms * coefficients).T, strict=True))
    return {part: np.sum([seconds[name] for name in names], axis=0) for part, names in COMPONENTS.items()}


def regime(category: str) -> str:
    """A category of WISP, appendix C without how it was drawn."""
    return category.removesuffix(" deterministic").removesuffix(" random")


def _loaded_profile(name: str, report: Mapping[str, Any]) -> LoadedProfile:
    rows = report["measurements"]
    every = TimingPoints(
        np.array([row["terms"] for row in rows], dtype=np.float64),
        np.array([row["median_s"] for row in rows]),
        [regime(row["category"]) for row in rows],
    )
    held_out = np.array([row["use"] == "held out" for row in rows])
    return LoadedProfile(name, report, {"training set": every.select(~held_out), "test set": every.select(held_out)})
