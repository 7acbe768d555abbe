"""Logs to MLflow: a run for a sweep, nested in it one for each job, nested in that one for each stage."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.artifacts import manifest
from pipeline.report import context
from pipeline.report.context import JobContext, StageRun
from pipeline.report.mlflow_store import VALUE_CHARS, Tracking, flatten, mask_override, mask_secrets

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_PARAMS_PER_BATCH = 100
_METRICS_PER_BATCH = 1000
_MAX_SMALL_NBYTES = 1 << 20
_MAX_LOGGED_NBYTES = 1 << 28
_SMALL_SUFFIXES = {".json", ".csv", ".yaml", ".txt", ".md", ".png", ".svg", ".html"}
_METRIC_FILES = ("metrics.json", "quality.json", "training.json")
"""Files of a trained or profiled artifact whose numbers become metrics of its run."""


@dataclass(frozen=True)
class MlflowLogger:
    """An open MLflow experiment."""

    client: "MlflowClient"
    experiment_id: str

    @classmethod
    def open(cls, tracking: Tracking) -> "MlflowLogger":
        return cls(*tracking.connect())

    def start_run(self, name: str, parent: str | None = None, tags: Mapping[str, str | None] | None = None) -> str:
        """A new run, nested in `parent` if there is one; its id."""
        known = {key: value[:VALUE_CHARS] for key, value in (tags or {}).items() if value}
        nesting = {"mlflow.parentRunId": parent} if parent else {}
        run = self.client.create_run(self.experiment_id, run_name=name, tags={**known, **nesting})
        return str(run.info.run_id)

    def end_run(self, run_id: str, failed: bool = False, killed: bool = False) -> None:
        self.client.set_terminated(run_id, "KILLED" if killed else "FAILED" if failed else "FINISHED")

    def log_params(self, run_id: str, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        items = [Param(key, value) for key, value in params.items()]
        for at in range(0, len(items), _PARAMS_PER_BATCH):
            self.client.log_batch(run_id, params=items[at : at + _PARAMS_PER_BATCH])

    def log_metrics(self, run_id: str, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now_ms = int(1000 * time.time())
        items = [Metric(key, value, now_ms, 0) for key, value in metrics.items()]
        for at in range(0, len(items), _METRICS_PER_BATCH):
            self.client.log_batch(run_id, metrics=items[at : at + _METRICS_PER_BATCH])

    def log_files(self, run_id: str, paths: Iterable[Path], folder: str | None = None) -> None:
        for path in paths:
            self.client.log_artifact(run_id, str(path), folder)

    def log_text(self, run_id: str, name: str, text: str) -> None:
        self.client.log_text(run_id, text, name)


def log_job(logger: MlflowLogger, context: JobContext, parent: str | None, error: str | None = None) -> str:
    """The id of a job's run, still open, with its configuration, environment and nested stage runs."""
    import yaml

    tags = {"kind": "job", "digest": context.digest, "revision": context.revision, "error": error}
    run_id = logger.start_run(_run_name(context), parent, _prefix_tags(tags))
    logger.log_params(run_id, flatten({name: node for name, node in context.config.items() if name != "exhibit"}))
    logger.log_text(run_id, "config.yaml", yaml.safe_dump(mask_secrets(context.config), sort_keys=False))
    logger.log_text(run_id, "overrides.txt", "".join(f"{mask_override(one)}\n" for one in context.overrides))
    logger.log_text(run_id, "environment.json", json.dumps(_environment(context), indent=1, default=str))
    for stage in context.stages:
        _log_stage(logger, stage, run_id)
    return run_id


def _run_name(context: JobContext) -> str:
    changes = [mask_override(one) for one in context.overrides if one.lstrip("+").partition("=")[0] != "policy"]
    return " ".join([context.policy, *changes])[:250]


def _environment(context: JobContext) -> dict[str, Any]:
    """Revision, versions, machine and seeds; never the process's environment variables."""
    seeds = {place: context.config_value(place) for place in ("seed", "training.seed", "workload.seed")}
    return {"revision": context.revision, "versions": context.versions, "machine": context.machine, "seeds": seeds}


def _log_stage(logger: MlflowLogger, stage: StageRun, parent: str) -> None:
    found = manifest.read_manifest(stage.path)
    run_id = logger.start_run(stage.key, parent, _prefix_tags(_lineage_tags(stage, found)))
    logger.log_metrics(run_id, _file_metrics(stage.path) | {"seconds": stage.seconds})
    if found:
        logger.log_params(run_id, flatten(found.args))
        files = {name: asdict(file) for name, file in found.files.items()}
        logger.log_text(run_id, "files.json", json.dumps(files, indent=1))
    if stage.kind != "serve":  # what was served lies in the job's own run
        logger.log_files(run_id, _small_files(stage.path) if stage.cached else _artifact_files(stage.path), "artifact")
    logger.end_run(run_id)
    logger.log_metrics(parent, context.stage_metrics(stage))
    logger.log_files(parent, context.stage_figures(stage), stage.name)


def _lineage_tags(stage: StageRun, found: manifest.Manifest | None) -> dict[str, str | None]:
    tags = {"kind": stage.kind, "cached": str(stage.cached), "path": str(stage.path), "digest": stage.key}
    inputs = json.dumps(found.inputs if found else dict(stage.inputs))
    known = {"digest": found.digest, "target": found.target, "revision": found.revision} if found else {}
    return {**tags, "inputs": inputs, **known}


def _prefix_tags(tags: Mapping[str, str | None]) -> dict[str, str | None]:
    """MLflow lists them beside its own tags."""
    return {f"tandem.{key}": value for key, value in tags.items()}


def _small_files(folder: Path) -> list[Path]:
    """Reports, plots and settings of a cached artifact; its weights are in the run that built it."""
    return [
        path
        for path in _artifact_files(folder)
        if path.suffix in _SMALL_SUFFIXES and path.stat().st_size <= _MAX_SMALL_NBYTES
    ]


def _artifact_files(folder: Path) -> list[Path]:
    """All files of an artifact, trained models included, except those that are too large to be kept twice."""
    found = (path for path in sorted(folder.iterdir()) if path.is_file() and path.name != manifest.MANIFEST_FILE)
    return [path for path in found if path.stat().st_size <= _MAX_LOGGED_NBYTES]


def _file_metrics(folder: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in _METRIC_FILES:
        if (folder / name).is_file():
            found |= _flatten_numbers(json.loads((folder / name).read_text(encoding="utf-8")), folder / name)
    return found


def _flatten_numbers(node: Any, place: Path | str) -> dict[str, float]:
    prefix = place.stem if isinstance(place, Path) else place
    if isinstance(node, dict):
        return {
            key: leaf
            for name, value in node.items()
            for key, leaf in _flatten_numbers(value, f"{prefix}/{name}").items()
        }
    return {prefix: float(node)} if isinstance(node, int | float) and not isinstance(node, bool) else {}
