"""The artifact of a profile: latency.json for serving, chip.yaml for conf/hardware/chip/, and profile.json, written and
read back.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.hardware.fitted_latencies import PROFILE_FILE
from serving.hardware.latency import COEFFICIENTS
from training.latency.fit import Array, terms
from training.latency.model_profile import QUOTED_TOKENS, ModelProfile
from training.latency.profile_text import draw_figures, profile_text
from training.latency.timing import Timing

FITTED_SET = "measured"

_CHIP_HEADER = """\
# {source}.
# Copy this file into conf/hardware/chip/ (or `fitted` into a chip that is there), and choose it with
# hardware.cloud.chip={name} hardware.cloud.timing={set}; the same for hardware.device.
"""


def chip_yaml(source: str, profiles: Sequence[ModelProfile], memory_nbytes: int | None = None) -> str:
    """YAML of a chip without peak rates, with the coefficients as the fitted set `FITTED_SET`."""
    import yaml

    name = slug(inside[1] if (inside := re.search(r"\((.*)\)", source)) else source)
    node: dict[str, Any] = {
        "_target_": "serving.hardware.chip.Chip",
        "name": name,
        "default_mode": "default",
        "modes": {"default": {}},
        "sources": {},
        "fitted": {FITTED_SET: {"source": f"measured: {source}", "latencies": _latencies(profiles)}},
    }
    if memory_nbytes is not None:
        node["memory_gb"] = round(memory_nbytes / 2**30, 1)
        node["sources"]["memory_gb"] = "measured: as the system and torch say"
    return _CHIP_HEADER.format(source=source, name=name, set=FITTED_SET) + yaml.safe_dump(
        node, sort_keys=False, width=120
    )


def _latencies(profiles: Sequence[ModelProfile]) -> dict[str, Any]:
    return {each.architecture.name: asdict(each.latency) for each in profiles}


def slug(text: str) -> str:
    """The text in lower case with underscores for all but letters and digits."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


REPORT_FILE, TEXT_FILE, METRICS_FILE, CHIP_FILE = "profile.json", "profile.txt", "metrics.json", "chip.yaml"

MachineInfo = Mapping[str, str | int | float | bool]


def write_profile(
    out: Path, source: str, profiles: Sequence[ModelProfile], machine: MachineInfo, memory_nbytes: int | None = None
) -> None:
    """Writes latency.json, which `serving.hardware.fitted_latencies.load_fitted_latencies` reads; profile.json with all
    measurements; profile.txt, metrics.json, figures/*.png, and chip.yaml, a chip with these coefficients.
    """
    _write_json(out / PROFILE_FILE, {"source": source, "latencies": _latencies(profiles)})
    options = asdict(profiles[0].options)
    _write_json(
        out / REPORT_FILE, {"machine": dict(machine), "options": options, **{m.name: model_report(m) for m in profiles}}
    )
    _write_json(
        out / METRICS_FILE, {f"{m.name}/{name}": value for m in profiles for name, value in model_metrics(m).items()}
    )
    (out / TEXT_FILE).write_text(profile_text(source, profiles, machine), encoding="utf-8")
    (out / CHIP_FILE).write_text(chip_yaml(source, profiles, memory_nbytes), encoding="utf-8")
    for each in profiles:
        draw_figures(each, out / "figures")


def model_report(profile: ModelProfile) -> dict[str, Any]:
    """One model's part of profile.json."""
    return {
        "architecture": profile.architecture.name,
        "measured_on": profile.measured_on,
        **asdict(profile.fit),
        "ordinary_least_squares": asdict(profile.ordinary_fit),
        "omitted": profile.omitted,
        "repeats": profile.repeats,
        "warmup_runs": profile.warmup_runs,
        "undisturbed_share": profile.undisturbed_share,
        "num_disturbed": profile.num_disturbed,
        "steady_share": profile.steady_share,
        "first_run_share": profile.first_run_share,
        f"prefill_{QUOTED_TOKENS}_s": profile.prefill_s,
        f"decode_behind_{QUOTED_TOKENS}_s": profile.decode_s,
        "measurements": [_timing_row(timing) for timing in profile.timings],
    }


def model_metrics(profile: ModelProfile) -> dict[str, float]:
    """One model's metrics."""
    fit, plain = profile.fit, profile.ordinary_fit
    found: dict[str, float | None] = {
        **fit.coefficients,
        "fitted/r2": fit.fitted.r2,
        "fitted/mape": fit.fitted.mape,
        "held_out/r2": fit.held_out.r2,
        "held_out/mape": fit.held_out.mape,
        "folds/r2": fit.folds.r2,
        "folds/mape": fit.folds.mape,
        "ols/held_out/r2": plain.held_out.r2,
        "ols/held_out/mape": plain.held_out.mape,
        **{f"held_out/mape_{slug(name)}": value for name, value in fit.held_out_mape.items()},
        f"prefill_{QUOTED_TOKENS}_s": profile.prefill_s,
        f"decode_behind_{QUOTED_TOKENS}_s": profile.decode_s,
        "undisturbed_share": profile.undisturbed_share,
        "steady_share": profile.steady_share,
    }
    return {name: value for name, value in found.items() if value is not None}


def _timing_row(timing: Timing) -> dict[str, Any]:
    return {
        "use": "held out" if timing.shape.held_out else "fitted",
        "category": timing.shape.category,
        "kind": timing.shape.kind,
        "sessions": [part._asdict() for part in timing.shape.sessions],
        "terms": terms(timing.loads),
        **timing.statistics(),
        "runs": [run._asdict() for run in timing.runs],
    }


def _write_json(file: Path, data: Any) -> None:
    file.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")


COMPONENTS = {
    "linear": ("a_s",),
    "interactions": ("b_compute_s",),
    "cached": ("b_read_s",),
    "constant": ("c_s", "wake_s"),
    "sessions": ("session_s",),
    "lm_head": ("head_token_s", "head_c_s"),
}
"""Coefficients by the component of a forward that they time."""


@dataclass(frozen=True)
class TimingPoints:
    """Configurations: `terms` (configurations, coefficients) and `seconds` (configurations)."""

    terms: Array
    seconds: Array
    regimes: Sequence[str]
    """compute-bound, memory-bound or mixed; or the categories of the user's CSV file."""

    def select(self, chosen: NDArray[np.bool_]) -> "TimingPoints":
        regimes = [regime for regime, kept in zip(self.regimes, chosen, strict=True) if kept]
        return TimingPoints(self.terms[chosen], self.seconds[chosen], regimes)

    def by_regime(self) -> "dict[str, TimingPoints]":
        names = np.array(self.regimes)
        return {name: self.select(names == name) for name in sorted(dict.fromkeys(self.regimes))}


@dataclass(frozen=True)
class LoadedProfile:
    """One model of a profile: `report` is its part of profile.json, `sets` its configurations."""

    name: str
    report: Mapping[str, Any]
    sets: Mapping[str, TimingPoints]
    """training set (fitted) and test set (held out)."""

    @property
    def coefficients(self) -> Array:
        return np.array([self.report["coefficients"][name] for name in COEFFICIENTS])

    def predict_s(self, points: TimingPoints) -> Array:
        """Seconds."""
        return points.terms @ self.coefficients


def read_profile(profile: Path) -> list[LoadedProfile]:
    """Reads the models of a profile's artifact. Raises ValueError for a folder without profile.json."""
    file = profile / REPORT_FILE
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise ValueError(f"{file} is no report of a profile ({problem}); give the artifact of such a stage.") from None
    return [_loaded_profile(name, node) for name, node in report.items() if name not in ("machine", "options")]


def components(terms: Array, coefficients: Array) -> dict[str, Array]:
    """Seconds of each of `COMPONENTS`, each of shape (configurations)."""
    seconds = dict(zip(COEFFICIENTS, (terms * coefficients).T, strict=True))
    return {part: np.sum([seconds[name] for name in names], axis=0) for part, names in COMPONENTS.items()}


def regime(category: str) -> str:
    """A category of WISP, appendix C, without "deterministic" or "random"."""
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
