"""What a stage's artifact shows in the run of every job that uses it: metrics.json and figures/*.png, by its name.

metrics.json is `{name: number}`; what is not a finite number is passed over.
"""

import json
from math import isfinite
from pathlib import Path

from pipeline.report.context import StageRun

METRICS_FILE, FIGURES_FOLDER = "metrics.json", "figures"


def metrics(stage: StageRun) -> dict[str, float]:
    """`STAGE/NAME` of each number; none where the file is missing or is no such thing."""
    try:
        found = json.loads((stage.path / METRICS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    numbers = found.items() if isinstance(found, dict) else ()
    return {f"{stage.name}/{name}": float(value) for name, value in numbers if _is_number(value)}


def figures(stage: StageRun) -> list[Path]:
    """In the order of their names."""
    return sorted((stage.path / FIGURES_FOLDER).glob("*.png"))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
