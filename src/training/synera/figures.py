"""Synera, Fig. 4a, 4b and 5b, drawn from our own tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from training.synera.alignment import Alignment, Floats
from training.synera.alignment_report import BINS, EDGES, TOKEN, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _ORANGE, _FAINT = "#3366cc", "#d9572b", "#9aa5b1"
_SIGMAS = 1.96


def draw(found: Alignment, table: Mapping[str, Mapping[str, Row]], folder: Path) -> None:
    """Writes hit_rate.png, confidence_cdf.png and importance_cdf.png; `table` is `rows` of the alignment."""
    folder.mkdir(exist_ok=True)
    tokens = found.tokens
    axes = _axes("confidence", "hit rate, %")
    _hit_rates(axes, table[TOKEN])
    _save(axes, folder / "hit_rate.png", "Hit rate by confidence, 95 % intervals")
    axes = _axes("confidence", "share of tokens, %")
    axes.axvline(0.8, color=_FAINT, linewidth=1)
    _cdf(axes, tokens.confidence, "all tokens", _BLUE)
    _cdf(axes, tokens.confidence[tokens.content], "content tokens", _ORANGE)
    axes.legend(fontsize=8, frameon=False)
    _save(axes, folder / "confidence_cdf.png", "CDF of confidence")
    axes = _axes("importance", "share of drafted tokens, %")
    _cdf(axes, tokens.importance[~np.isnan(tokens.importance)], "drafted tokens", _BLUE)
    _save(axes, folder / "importance_cdf.png", "CDF of importance")


def _hit_rates(axes: Axes, table: Mapping[str, Row]) -> None:
    """The bins are the table's first rows."""
    middles = [(low + high) / 2 for low, high in BINS]
    for metric, label, colour in (("top_1", "top-1", _BLUE), ("top_5", "top-5", _ORANGE)):
        cells = [(x, row[metric]) for x, row in zip(middles, table.values(), strict=False)]
        known = [(x, np.array(cell)) for x, cell in cells if isinstance(cell, list)]
        rates = [100 * float(cell.mean()) for _, cell in known]
        halves = [100 * _SIGMAS * float(cell.std()) / len(cell) ** 0.5 for _, cell in known]
        axes.errorbar([x for x, _ in known], rates, yerr=halves, color=colour, marker="o", capsize=3, label=label)
    axes.set(xlim=(0, 1), ylim=(0, 105), xticks=EDGES)
    axes.legend(fontsize=8, frameon=False, loc="lower right")


def _cdf(axes: Axes, values: Floats, label: str, colour: str) -> None:
    ordered = np.sort(values)
    shares = 100 * np.arange(1, len(ordered) + 1) / max(1, len(ordered))
    axes.step(ordered, shares, color=colour, where="post", label=label)


def _axes(x: str, y: str) -> Axes:
    from matplotlib.figure import Figure

    axes = Figure(figsize=(5.6, 4.2), layout="constrained").add_subplot()
    axes.set(xlabel=x, ylabel=y)
    axes.grid(visible=True, color="#e4e7eb", linewidth=0.7)
    axes.set_axisbelow(True)
    return axes


def _save(axes: Axes, path: Path, title: str) -> None:
    figure = axes.get_figure(root=True)
    if figure is not None:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        figure.savefig(path, dpi=130, metadata={"Software": None})
