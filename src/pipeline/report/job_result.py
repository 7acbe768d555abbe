"""job.json: status and result of a job, for the sweep that it is part of, which may run in another process."""

import json
from collections.abc import Iterable, Mapping
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
    """By the keys of `serving.metrics.definitions`."""
    run_id: str | None = None
    """The MLflow run."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The files of conf/ that the configuration was composed of, with their digests."""
    revision: str | None = None
    """The code that built the result, which for a cached one may be older than the report's."""
    error: str | None = None
    transport_check: str = ""
    """What latencies of a paced run are worth; empty for any other run."""
    hypothetical: str = ""
    """Why acceptance and time are of unlike pairs of models; such a row stays out of verdicts."""

    def write(self, folder: Path) -> None:
        fingerprint.write_atomic(folder / JOB_FILE, json.dumps(asdict(self), indent=1) + "\n")


def transport_checks(results: Iterable[JobResult]) -> list[str]:
    """What is said of the latencies of the paced runs among these jobs, each text once."""
    return list(dict.fromkeys(one.transport_check for one in results if one.transport_check))


def running_result(context: JobContext) -> JobResult:
    """The result of a job that has just started."""
    overrides = tuple(map(mask_override, context.overrides))
    return JobResult(
        "running", context.number, context.policy, overrides, context.digest, files=context.files,
        revision=context.revision,
    )  # fmt: skip


def read_result(folder: Path) -> JobResult | None:
    """The result of the job of this folder; None if none ever started. Fields that newer code wrote are left out."""
    try:
        found: dict[str, Any] = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
        known = {key: found[key] for key in found.keys() & JobResult.__dataclass_fields__.keys()}
        return JobResult(**known | {"overrides": tuple(found["overrides"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return _from_hydra(folder)


def _from_hydra(folder: Path) -> JobResult | None:
    """A job that was killed before it wrote anything, from the overrides that Hydra notes before it starts a job."""
    import yaml

    try:
        overrides = yaml.safe_load((folder / ".hydra" / "overrides.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return None
    number = int(folder.name) if folder.name.isdigit() else None
    return JobResult("running", number, overrides=tuple(map(mask_override, map(str, overrides or ()))))
