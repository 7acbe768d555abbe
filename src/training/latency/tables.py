"""WISP, Fig. 9 of our own profile: predicted against measured times, and how errors are spread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from training.latency.errors_table import ENVELOPE
from training.latency.profiled import Profiled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"training set": "#3366cc", "test set": "#d9572b"}
_FAINT = "#9aa5b1"


def draw(models: Sequence[Profiled], folder: Path) -> None:
    """Writes NAME_fig9.png for each model."""
    from matplotlib.figure import Figure

    folder.mkdir(exist_ok=True)
    for model in models:
        figure = Figure(figsize=(10.4, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        _against(left, model)
        _spread(right, model)
        figure.suptitle(
            f"{model.name}: predicted against measured, and relative errors", x=0.01, ha="left", fontsize=11
        )
        figure.savefig(folder / f"{model.name}_fig9.png", dpi=130, metadata={"Software": None})


def _against(axes: Axes, model: Profiled) -> None:
    every = np.concatenate([points.seconds for points in model.sets.values()])
    ends = 1e3 * np.array([every.min(), every.max()])
    axes.plot(ends, ends, color=_FAINT, linewidth=1)
    axes.fill_between(
        ends, (1 - ENVELOPE) * ends, (1 + ENVELOPE) * ends, color=_FAINT, alpha=0.25, linewidth=0, label="within 10 %"
    )
    for name, points in model.sets.items():
        predicted = model.predicted(points)
        axes.scatter(1e3 * points.seconds, 1e3 * predicted, s=14, color=_COLOURS[name], label=name)
    axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")
    axes.legend(fontsize=8, frameon=False)


def _spread(axes: Axes, model: Profiled) -> None:
    errors = {name: 100 * (model.predicted(points) / points.seconds - 1) for name, points in model.sets.items()}
    most = max(float(np.abs(off).max()) for off in errors.values())
    bins = np.linspace(-most, most, 31).tolist()
    for name, off in errors.items():
        share = np.full(len(off), 100 / len(off))
        axes.hist(off, bins=bins, weights=share, histtype="step", color=_COLOURS[name], label=name)
    axes.axvline(0, color=_FAINT, linewidth=1)
    axes.set(xlabel="predicted too long (+) or too short (-), %", ylabel="share of the set, %")
    axes.legend(fontsize=8, frameon=False)
