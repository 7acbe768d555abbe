"""An exhibit whose rows are known: printed, written, drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.report.exhibit import files, plot, render
from pipeline.report.exhibit.rows import Shown
from pipeline.report.exhibit.verdict import verdicts
from pipeline.report.table import Part


@dataclass(frozen=True)
class Made:
    """What to print, the files that hold it, and the numbers for MLflow."""

    parts: list[Part]
    files: list[Path]
    metrics: dict[str, float]


def make(shown: Shown, folder: Path, figure: Path, notes: Sequence[str] = ()) -> Made:
    """Writes exhibit.json, exhibit.csv and the figure, if there is one."""
    found = verdicts(shown)
    made = files.write(shown, found, folder)
    drawn = plot.draw(shown, figure)
    return Made(render.parts(shown, found, notes), [*made, *([drawn] if drawn else [])], files.metrics(shown, found))
