"""Coefficients with their intervals beside those that WISP prints, and what each would mean for the chip (Table 12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from serving.hardware.architecture import Architecture
from serving.hardware.chip import Chip
from serving.hardware.latency import COEFFICIENTS, Latency
from serving.hardware.roofline import roofline
from training.latency.profiled import Profiled
from training.latency.scores_table import Rows


def coefficients(models: Sequence[Profiled], chip: Chip, architecture: Architecture) -> Rows:
    """Rows by coefficient: every fitted set of the chip for that architecture, its roofline, and this profile's models.

    A row is left out where the coefficient is 0 and no interval says otherwise.
    """
    known = {fits.source: fits.latencies.get(architecture.name) for fits in chip.fitted.values()}
    drawn = {f"roofline of {chip.name}": roofline(chip, None, architecture, "fp16")}
    sets = {source: latency for source, latency in (known | drawn).items() if latency}
    found: Rows = {}
    for name in COEFFICIENTS:
        rows = {label: _stated(name, latency, chip, architecture) for label, latency in sets.items()}
        rows |= {f"{model.name} here": _measured(name, model) for model in models}
        if kept := {label: row for label, row in rows.items() if row["value_s"] or row.get("high_s")}:
            found[name.removesuffix("_s")] = kept
    return found


def _measured(name: str, model: Profiled) -> dict[str, Any]:
    low, high = model.node["intervals"][name]
    plain = model.node["ordinary_least_squares"]["coefficients"][name]
    return {"value_s": model.node["coefficients"][name], "low_s": low, "high_s": high, "plain_s": plain or None}


def _stated(name: str, latency: Latency, chip: Chip, architecture: Architecture) -> dict[str, Any]:
    """With the rate at which the chip would have to compute or read, and its share of what the datasheet says.

    Of a row: the blocks' linear layers alone. Of the constant: were it nothing but the reading of the blocks' weights.
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
        row["of_peak"] = row["tflops"] / mode.fp16_tflops
    if seconds and name in nbytes and mode.memory_gbps:
        row["gbps"] = nbytes[name] / seconds / 1e9
        row["of_bandwidth"] = row["gbps"] / mode.memory_gbps
    return row
