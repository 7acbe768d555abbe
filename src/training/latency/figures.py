"""The plots of a profile: predicted against measured, and what is left over, by category."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from serving.hardware.latency import COEFFICIENTS
from training.latency.equations import Array, equations
from training.latency.measured import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#3366cc", "#d9572b", "#2f9e6e", "#8b5cc7", "#c79a1b", "#5f6b7a", "#c2417c", "#1fa3b8")


def draw(measured: Measured, folder: Path) -> None:
    """Writes NAME_predicted.png and NAME_residuals.png; held-out configurations are crosses."""
    from matplotlib.figure import Figure

    folder.mkdir(exist_ok=True)
    x, seconds = equations(measured.timings)
    predicted = x @ np.array([measured.fit.coefficients[name] for name in COEFFICIENTS])
    figure = Figure(figsize=(5.6, 4.6), layout="constrained")
    _predicted(figure.add_subplot(), measured, 1e3 * seconds, 1e3 * predicted)
    _save(figure, folder / f"{measured.name}_predicted.png", f"{measured.name}: predicted against measured")
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    _residuals(figure.add_subplot(), measured, 1e3 * seconds, 100 * (predicted / seconds - 1))
    _save(figure, folder / f"{measured.name}_residuals.png", f"{measured.name}: error of the prediction")


def _predicted(axes: Axes, measured: Measured, measured_ms: Array, predicted_ms: Array) -> None:
    ends = [float(measured_ms.min()), float(measured_ms.max())]
    axes.plot(ends, ends, color="#9aa5b1", linewidth=1)
    _points(axes, measured, measured_ms, predicted_ms)
    axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")


def _residuals(axes: Axes, measured: Measured, measured_ms: Array, off_percent: Array) -> None:
    axes.axhline(0, color="#9aa5b1", linewidth=1)
    _points(axes, measured, measured_ms, off_percent)
    axes.set(xscale="log", xlabel="measured, ms", ylabel="predicted too long (+) or too short (-), %")


def _points(axes: Axes, measured: Measured, x: Array, y: Array) -> None:
    for category, colour, rows in _groups(measured):
        for held_out, marker in ((False, "o"), (True, "x")):
            of_use = [i for i in rows if measured.timings[i].shape.held_out == held_out]
            label = f"{category}{', held out' if held_out else ''}"
            if of_use:
                axes.scatter(x[of_use], y[of_use], s=16, color=colour, marker=marker, linewidths=1, label=label)
    axes.legend(fontsize=7, frameon=False)
    axes.grid(visible=True, color="#e4e7eb", linewidth=0.7)
    axes.set_axisbelow(True)


def _groups(measured: Measured) -> Iterator[tuple[str, str, list[int]]]:
    categories = dict.fromkeys(timing.shape.category for timing in measured.timings)
    for place, category in enumerate(categories):
        rows = [i for i, timing in enumerate(measured.timings) if timing.shape.category == category]
        yield category, _COLOURS[place % len(_COLOURS)], rows


def _save(figure: Figure, path: Path, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.savefig(path, dpi=130, metadata={"Software": None})
