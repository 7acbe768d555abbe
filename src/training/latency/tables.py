"""WISP's tables and figures for our own profile: scores (Table 7), residuals (Fig. 9), errors and components by regime
(Fig. 11), and coefficients beside the published ones (Table 12).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from serving.hardware.architecture import Architecture
from serving.hardware.chip import Chip, roofline
from serving.hardware.latency import COEFFICIENTS, LinearLatency, batch_load
from serving.hardware.roofline import linear_fit
from training.fitting.figures import save_figure
from training.latency.artifact import LoadedProfile, TimingPoints, components, regime
from training.latency.fit import Array, score_fit, terms
from training.latency.grid import WorkGrid, WorkShape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIT_KEYS = {"Eq. 19, least squares": "ordinary_least_squares", "as used": ""}
"""The paper's terms and solution; and ours, with more terms, least relative error and no negative coefficient."""

TableGroups = dict[str, dict[str, dict[str, Any]]]


def scores(models: Sequence[LoadedProfile]) -> TableGroups:
    """Rows by model and fit: training set, test set and cross-validation."""
    return {
        f"{model.name}: {name}": _scores(model.report[key] if key else model.report)
        for model in models
        for name, key in FIT_KEYS.items()
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


ERROR_BAND = 0.1
"""Relative error within which most samples of WISP, Fig. 9a lie."""


def residuals(models: Sequence[LoadedProfile]) -> TableGroups:
    """Rows by model: the used fit on its training and test set; lists have one number per configuration."""
    return {
        model.name: {name: _residuals(points, model.coefficients) for name, points in model.sets.items()}
        for model in models
    }


def _residuals(points: TimingPoints, b: Array) -> dict[str, Any]:
    off = points.terms @ b - points.seconds
    relative, found = off / points.seconds, score_fit(points.terms, points.seconds, b)
    return {
        "r2": found.r2,
        "mape": np.abs(relative).tolist(),
        "within_10_percent": (np.abs(relative) <= ERROR_BAND).astype(float).tolist(),
        "bias_s": off.tolist(),
        "relative_bias": relative.tolist(),
        "underestimated_share": (off < 0).astype(float).tolist(),
        "error_p5": float(np.quantile(relative, 0.05)),
        "error_p95": float(np.quantile(relative, 0.95)),
        "max_underestimate_s": float(max(0.0, -off.min())),
        "max_underestimate": float(max(0.0, -relative.min())),
    }


def regimes(models: Sequence[LoadedProfile]) -> TableGroups:
    """Rows by model and set: errors by regime, each component's share of the prediction, the largest component."""
    return {
        f"{model.name}: {name}": {
            kind: _error_row(own, model.coefficients) | _component_shares(own.terms, model.coefficients)
            for kind, own in points.by_regime().items()
        }
        for model in models
        for name, points in model.sets.items()
    }


def _error_row(points: TimingPoints, b: Array) -> dict[str, Any]:
    off = np.abs(points.terms @ b - points.seconds)
    return {
        "mae_s": off.tolist(),
        "p95_s": float(np.quantile(off, 0.95)),
        "max_s": float(off.max()),
        "mape": (off / points.seconds).tolist(),
    }


def _component_shares(x: Array, b: Array) -> dict[str, Any]:
    parts = components(x, b)
    whole = np.sum(list(parts.values()), axis=0)
    names = list(parts)
    largest = Counter(names[i] for i in np.argmax([parts[name] for name in names], axis=0).tolist())
    return {
        "configurations": len(whole),
        **{f"{name}_share": (seconds / whole).tolist() for name, seconds in parts.items()},
        "largest_component": ", ".join(f"{name} {count}" for name, count in largest.most_common()),
    }


def implied_shares(latency: LinearLatency, work_grid: WorkGrid, max_session_tokens: int) -> dict[str, dict[str, Any]]:
    """Component shares by regime that published coefficients imply for the whole grids, without the LM head."""
    rows = {
        regime(name): [_shape_terms(shape) for shape in grid(max_session_tokens)]
        for name, grid in work_grid.grids.items()
    }
    b = np.array([getattr(latency, name) for name in COEFFICIENTS])
    return {kind: _component_shares(np.array(own, dtype=np.float64), b) for kind, own in rows.items()}


def _shape_terms(shape: WorkShape) -> tuple[float, ...]:
    return terms([batch_load(1, [(part.cached_tokens, part.new_tokens) for part in shape.sessions])])


_COLOURS = {"training set": "#3366cc", "test set": "#d9572b"}
_GREY = "#9aa5b1"


def draw_figures(models: Sequence[LoadedProfile], folder: Path) -> None:
    """Writes NAME_fig9.png, with PDF and SVG, for each model."""
    from matplotlib.figure import Figure

    folder.mkdir(exist_ok=True)
    for model in models:
        figure = Figure(figsize=(10.4, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        _plot_predicted(left, model)
        _plot_errors(right, model)
        title = f"{model.name}: predicted against measured, and relative errors"
        save_figure(figure, folder / f"{model.name}_fig9.png", title, legend_columns=3)


def _plot_predicted(axes: "Axes", model: LoadedProfile) -> None:
    every = np.concatenate([points.seconds for points in model.sets.values()])
    ends = 1e3 * np.array([every.min(), every.max()])
    axes.plot(ends, ends, color=_GREY, linewidth=1)
    axes.fill_between(
        ends,
        (1 - ERROR_BAND) * ends,
        (1 + ERROR_BAND) * ends,
        color=_GREY,
        alpha=0.25,
        linewidth=0,
        label="within 10 %",
    )
    for name, points in model.sets.items():
        predicted = model.predict_s(points)
        axes.scatter(1e3 * points.seconds, 1e3 * predicted, s=14, color=_COLOURS[name], label=name)
    axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")


def _plot_errors(axes: "Axes", model: LoadedProfile) -> None:
    errors = {name: 100 * (model.predict_s(points) / points.seconds - 1) for name, points in model.sets.items()}
    most = max(float(np.abs(off).max()) for off in errors.values())
    bins = np.linspace(-most, most, 31).tolist()
    for name, off in errors.items():
        share = np.full(len(off), 100 / len(off))
        axes.hist(off, bins=bins, weights=share, histtype="step", color=_COLOURS[name], label=name)
    axes.axvline(0, color=_GREY, linewidth=1)
    axes.set(xlabel="predicted too long (+) or too short (-), %", ylabel="share of the set, %")


def coefficients(models: Sequence[LoadedProfile], chip: Chip, architecture: Architecture) -> TableGroups:
    """Rows by coefficient: every fitted set of the chip for that architecture, its roofline, and this profile's models.

    A row is left out if the coefficient and the upper end of its interval are 0.
    """
    known = {fits.source: fits.latencies.get(architecture.name) for fits in chip.fitted.values()}
    drawn = {f"Eq. 19 fitted to the roofline of {chip.name}": linear_fit(roofline(chip, None, architecture, "fp16"))}
    sets = {source: latency for source, latency in (known | drawn).items() if latency}
    found: TableGroups = {}
    for name in COEFFICIENTS:
        rows = {label: _published_row(name, latency, chip, architecture) for label, latency in sets.items()}
        rows |= {f"{model.name} here": _measured_row(name, model) for model in models}
        if kept := {label: row for label, row in rows.items() if row["value_s"] or row.get("high_s")}:
            found[name.removesuffix("_s")] = kept
    return found


def _measured_row(name: str, model: LoadedProfile) -> dict[str, Any]:
    low, high = model.report["intervals"][name]
    plain = model.report["ordinary_least_squares"]["coefficients"][name]
    return {
        "value_s": model.report["coefficients"][name],
        "low_s": low,
        "high_s": high,
        "least_squares_s": plain or None,
    }


def _published_row(name: str, latency: LinearLatency, chip: Chip, architecture: Architecture) -> dict[str, Any]:
    """The coefficient with the compute or memory rate that it implies, and the rate's share of the chip's peak.

    A token is taken to cost the blocks' linear layers alone, the constant to be the reading of the blocks' weights.
    """
    seconds, mode = getattr(latency, name), chip.mode(None)
    row: dict[str, Any] = {"value_s": seconds}
    flops = {
        "a_s": 2 * architecture.matmul_parameters,
        "b_compute_s": architecture.flops_per_interaction(),
    }
    nbytes = {
        "b_read_s": architecture.kv_nbytes_per_token("fp16"),
        "c_s": architecture.blocks_nbytes("fp16"),
    }
    if seconds and name in flops and mode.fp16_tflops:
        row["tflops"] = flops[name] / seconds / 1e12
        row["share_of_peak"] = row["tflops"] / mode.fp16_tflops
    if seconds and name in nbytes and mode.memory_gbps:
        row["gbps"] = nbytes[name] / seconds / 1e9
        row["share_of_bandwidth"] = row["gbps"] / mode.memory_gbps
    return row
