"""job.json: what became of a job. It is all that connects the jobs of a sweep, which may run in other processes."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipeline.artifacts import fingerprint
from pipeline.report.context import JobContext
from pipeline.report.mlflow_store import masked_override

NAME = "job.json"


@dataclass(frozen=True)
class Outcome:
    """Status and result of a job; `running`, said of a job that nobody runs any more: it was killed."""

    status: Literal["running", "complete", "failed"]
    number: int | None = None
    policy: str = ""
    overrides: tuple[str, ...] = ()
    digest: str = ""
    artifact: str | None = None
    lossless: bool = False
    quality_metric: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """`Summary.metrics`."""
    run_id: str | None = None
    """Of MLflow."""
    error: str | None = None

    def write(self, folder: Path) -> None:
        fingerprint.replace(folder / NAME, json.dumps(asdict(self), indent=1) + "\n")


def begun(context: JobContext) -> Outcome:
    """The outcome of a job that has just started."""
    overrides = tuple(map(masked_override, context.overrides))
    return Outcome("running", context.number, context.policy, overrides, context.digest)


def read(folder: Path) -> Outcome | None:
    """What became of the job of this folder; None where no job ever started."""
    try:
        found: dict[str, Any] = json.loads((folder / NAME).read_text(encoding="utf-8"))
        return Outcome(**found | {"overrides": tuple(found["overrides"])})
    except (OSError, ValueError, TypeError, KeyError):
        return _from_hydra(folder)


def _from_hydra(folder: Path) -> Outcome | None:
    """A job that was killed before it wrote anything, from what Hydra notes before it calls a job."""
    import yaml

    try:
        overrides = yaml.safe_load((folder / ".hydra" / "overrides.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return None
    number = int(folder.name) if folder.name.isdigit() else None
    return Outcome("running", number, overrides=tuple(map(masked_override, map(str, overrides or ()))))
