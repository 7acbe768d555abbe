"""What MLflow is told: a run for a sweep, in it one for each job, in that one for each stage."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.artifacts import manifest
from pipeline.report import context
from pipeline.report.context import JobContext, StageRun
from pipeline.report.mlflow_store import VALUE_CHARS, Tracking, flat, masked, masked_override

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_PARAMS_AT_ONCE = 100
_METRICS_AT_ONCE = 1000
_SMALL_NBYTES = 1 << 20
_KEPT_NBYTES = 1 << 28
_SMALL = {".json", ".csv", ".yaml", ".txt", ".md", ".png", ".svg", ".html"}
_FIGURES = ("metrics.json", "quality.json", "training.json")
"""Files of a trained or profiled artifact whose numbers become metrics of its run."""


@dataclass(frozen=True)
class Logbook:
    """An open MLflow experiment."""

    client: "MlflowClient"
    experiment_id: str

    @classmethod
    def open(cls, tracking: Tracking) -> "Logbook":
        return cls(*tracking.connect())

    def begin(self, name: str, parent: str | None = None, tags: Mapping[str, str | None] | None = None) -> str:
        """A new run, nested in `parent` if there is one; its id."""
        known = {key: value[:VALUE_CHARS] for key, value in (tags or {}).items() if value}
        nesting = {"mlflow.parentRunId": parent} if parent else {}
        run = self.client.create_run(self.experiment_id, run_name=name, tags={**known, **nesting})
        return str(run.info.run_id)

    def end(self, run_id: str, failed: bool = False) -> None:
        self.client.set_terminated(run_id, "FAILED" if failed else "FINISHED")

    def params(self, run_id: str, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        items = [Param(key, value) for key, value in params.items()]
        for at in range(0, len(items), _PARAMS_AT_ONCE):
            self.client.log_batch(run_id, params=items[at : at + _PARAMS_AT_ONCE])

    def metrics(self, run_id: str, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now_ms = int(1000 * time.time())
        items = [Metric(key, value, now_ms, 0) for key, value in metrics.items()]
        for at in range(0, len(items), _METRICS_AT_ONCE):
            self.client.log_batch(run_id, metrics=items[at : at + _METRICS_AT_ONCE])

    def files(self, run_id: str, paths: Iterable[Path], folder: str | None = None) -> None:
        for path in paths:
            self.client.log_artifact(run_id, str(path), folder)

    def text(self, run_id: str, name: str, text: str) -> None:
        self.client.log_text(run_id, text, name)


def log_job(book: Logbook, context: JobContext, parent: str | None, error: str | None = None) -> str:
    """A job's run with its configuration, environment and nested stage runs, still open; its id."""
    import yaml

    tags = {"kind": "job", "digest": context.digest, "revision": context.revision, "error": error}
    run_id = book.begin(_title(context), parent, _own(tags))
    book.params(run_id, flat({name: node for name, node in context.config.items() if name != "exhibit"}))
    book.text(run_id, "config.yaml", yaml.safe_dump(masked(context.config), sort_keys=False))
    book.text(run_id, "overrides.txt", "".join(f"{masked_override(one)}\n" for one in context.overrides))
    book.text(run_id, "environment.json", json.dumps(_environment(context), indent=1, default=str))
    for stage in context.stages:
        _log_stage(book, stage, run_id)
    return run_id


def _title(context: JobContext) -> str:
    changes = [masked_override(one) for one in context.overrides if one.lstrip("+").partition("=")[0] != "policy"]
    return " ".join([context.policy, *changes])[:250]


def _environment(context: JobContext) -> dict[str, Any]:
    """Revision, versions and machine as the caller names them; never the process's environment variables."""
    seeds = {place: context.find(place) for place in ("seed", "training.seed", "workload.seed")}
    return {"revision": context.revision, "versions": context.versions, "machine": context.machine, "seeds": seeds}


def _log_stage(book: Logbook, stage: StageRun, parent: str) -> None:
    found = manifest.read(stage.path)
    run_id = book.begin(stage.key, parent, _own(_lineage(stage, found)))
    book.metrics(run_id, _numbers(stage.path) | {"seconds": stage.seconds})
    if found:
        book.params(run_id, flat(found.args))
        files = {name: asdict(file) for name, file in found.files.items()}
        book.text(run_id, "files.json", json.dumps(files, indent=1))
    if stage.kind != "serve":  # what was served lies in the job's own run
        book.files(run_id, _small(stage.path) if stage.cached else _own_files(stage.path), "artifact")
    book.end(run_id)
    book.metrics(parent, context.stage_metrics(stage))
    book.files(parent, context.stage_figures(stage), stage.name)


def _lineage(stage: StageRun, found: manifest.Manifest | None) -> dict[str, str | None]:
    tags = {"kind": stage.kind, "cached": str(stage.cached), "path": str(stage.path), "digest": stage.key}
    inputs = json.dumps(found.inputs if found else dict(stage.inputs))
    known = {"digest": found.digest, "target": found.target, "revision": found.revision} if found else {}
    return {**tags, "inputs": inputs, **known}


def _own(tags: Mapping[str, str | None]) -> dict[str, str | None]:
    """MLflow shows them beside its own tags."""
    return {f"tandem.{key}": value for key, value in tags.items()}


def _small(folder: Path) -> list[Path]:
    """Reports, plots and settings of what was there already; its weights are in the run that built it."""
    return [path for path in _own_files(folder) if path.suffix in _SMALL and path.stat().st_size <= _SMALL_NBYTES]


def _own_files(folder: Path) -> list[Path]:
    """All that a stage made, trained models too, but for what is too large to be kept twice."""
    found = (path for path in sorted(folder.iterdir()) if path.is_file() and path.name != manifest.NAME)
    return [path for path in found if path.stat().st_size <= _KEPT_NBYTES]


def _numbers(folder: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in _FIGURES:
        if (folder / name).is_file():
            found |= _leaves(json.loads((folder / name).read_text(encoding="utf-8")), folder / name)
    return found


def _leaves(node: Any, place: Path | str) -> dict[str, float]:
    prefix = place.stem if isinstance(place, Path) else place
    if isinstance(node, dict):
        return {key: leaf for name, value in node.items() for key, leaf in _leaves(value, f"{prefix}/{name}").items()}
    return {prefix: float(node)} if isinstance(node, int | float) and not isinstance(node, bool) else {}
