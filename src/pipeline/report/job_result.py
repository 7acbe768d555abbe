"""job.json: what became of a job. It is all that connects the jobs of a sweep, which may run in other processes."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipeline.artifacts import fingerprint
from pipeline.report.context import JobContext
from pipeline.report.mlflow_store import mask_override

JOB_FILE = "job.json"


@dataclass(frozen=True)
class JobResult:
    """Status and result of a job; a job that stays `running` without a process was killed."""

    status: Literal["running", "complete", "failed"]
    number: int | None = None
    policy: str = ""
    overrides: tuple[str, ...] = ()
    digest: str = ""
    artifact: str | None = None
    lossless: bool = False
    quality_metric: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """`JobSummary.metrics`."""
    run_id: str | None = None
    """Of MLflow."""
    error: str | None = None

    def write(self, folder: Path) -> None:
        fingerprint.write_atomic(folder / JOB_FILE, json.dumps(asdict(self), indent=1) + "\n")


def running_result(context: JobContext) -> JobResult:
    """The outcome of a job that has just started."""
    overrides = tuple(map(mask_override, context.overrides))
    return JobResult("running", context.number, context.policy, overrides, context.digest)


def read_result(folder: Path) -> JobResult | None:
    """What became of the job of this folder; None where no job ever started."""
    try:
        found: dict[str, Any] = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
        return JobResult(**found | {"overrides": tuple(found["overrides"])})
    except (OSError, ValueError, TypeError, KeyError):
        return _from_hydra(folder)


def _from_hydra(folder: Path) -> JobResult | None:
    """A job that was killed before it wrote anything, from what Hydra notes before it calls a job."""
    import yaml

    try:
        overrides = yaml.safe_load((folder / ".hydra" / "overrides.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return None
    number = int(folder.name) if folder.name.isdigit() else None
    return JobResult("running", number, overrides=tuple(map(mask_override, map(str, overrides or ()))))
