"""Saves the figures of stages: a title above the panels, one legend below them, as PNG, PDF and SVG."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

_METADATA: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None}, "pdf": {"CreationDate": None, "Creator": None, "Producer": None}, "svg": {"Date": None},
}  # fmt: skip
"""What matplotlib would write of itself and of the time: the same content gives the same bytes.

The pipeline's figures have the same settings; neither package may import the other.
"""


def save_figure(figure: "Figure", path: Path, title: str, legend_columns: int = 2) -> None:
    """Writes the PNG file `path`, and PDF and SVG files beside it."""
    from matplotlib import rc_context

    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    found: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        columns = min(len(found), legend_columns)
        figure.legend(
            list(found.values()), list(found), loc="outside lower center", ncols=columns, fontsize=8, frameon=False
        )
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # a PDF's fonts are a page of its remarks
    with rc_context({"svg.hashsalt": "figure", "pdf.fonttype": 42}):
        for kind, metadata in _METADATA.items():
            figure.savefig(path.with_suffix(f".{kind}"), dpi=130, metadata=dict(metadata))
