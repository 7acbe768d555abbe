"""The context of a reported job: overrides, stages, versions, machine.

The artifact of a stage may hold metrics.json, `{name: number}`, and figures/*.png. The stage's run in MLflow has them,
and the run of a job that ends with the stage.
"""

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from pipeline.config.compose import select
from pipeline.report.mlflow_store import Tracking


@dataclass(frozen=True)
class StageRun:
    """One stage of the job: its artifact, built in `seconds`, now or (`cached`) earlier, from `inputs` (name: key)."""

    name: str
    key: str
    kind: str
    path: Path
    seconds: float
    cached: bool
    inputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobContext:
    """One job: Hydra's `folder` of it, `sweep` of its multirun (None for a single job), the resolved `config` as plain
    data, and the `choices` of each group.
    """

    folder: Path
    tracking: Tracking
    config: Mapping[str, Any]
    overrides: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    """The words of a single job's command, secrets masked; a sweep's are in its note. Empty from Python."""
    choices: Mapping[str, str] = field(default_factory=dict)
    stages: tuple[StageRun, ...] = ()
    digest: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    """The files of conf/ that the configuration was composed of, with their digests."""
    revision: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str | int | float] = field(default_factory=dict)
    number: int | None = None
    sweep: Path | None = None
    report: str = "full"
    """The printed report of the job: "full", "line" or "quiet"."""
    may_defer: bool = False
    """True if figures and MLflow may come after the command, where nothing was built."""
    started_s: float = field(default_factory=time.time)
    """When the job began, in seconds since 1970."""

    @property
    def policy(self) -> str:
        return str(self.config.get("policy", {}).get("name", "job"))

    def config_value(self, path: str) -> Any:
        """The value at a dotted path of the configuration, or None."""
        return select(self.config, path)


def command_line(words: Sequence[str]) -> str:
    """The command as a shell takes it."""
    return f"python -m pipeline {shlex.join(words)}"


METRICS_FILE, FIGURES_FOLDER = "metrics.json", "figures"


def stage_metrics(stage: StageRun) -> dict[str, float]:
    """`STAGE/NAME` of each number; empty if the file is missing or unreadable."""
    try:
        found = json.loads((stage.path / METRICS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    numbers = found.items() if isinstance(found, dict) else ()
    return {f"{stage.name}/{name}": float(value) for name, value in numbers if _is_number(value)}


def stage_figures(stage: StageRun) -> list[Path]:
    return sorted((stage.path / FIGURES_FOLDER).glob("*.png"))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
