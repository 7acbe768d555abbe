"""Stages in MLflow: each artifact has one run, found by its digest, in an experiment of its own.

The jobs that use it link to it. A trained model is a LoggedModel, a corpus or the data set of a workload a Dataset.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.artifacts import manifest
from pipeline.artifacts.manifest import Manifest
from pipeline.report.context import JobContext, StageRun
from pipeline.report.mlflow_logger import MAX_POINTS, CurvePoint, MlflowLogger, prefix_tags, select_numbers
from pipeline.report.mlflow_store import Tracking, flatten, mask_secrets
from pipeline.report.served_dataset import served_dataset

if TYPE_CHECKING:
    from mlflow.entities import Dataset

_MAX_SMALL_NBYTES = 1 << 20
_MAX_LOGGED_NBYTES = 1 << 28
_SMALL_SUFFIXES = {".json", ".csv", ".yaml", ".txt", ".md", ".png", ".svg", ".html"}
_METRIC_FILES = ("metrics.json", "quality.json", "training.json")
"""Files of a trained or profiled artifact whose numbers become metrics of its run, and whose lists become curves."""
_MACHINE_KEYS = {"machine", "threads", "seed"}
_MAX_PARAMS = 40


@dataclass(frozen=True)
class LoggedStage:
    """The run of a stage, the page that shows it, and the model or data set that the stage made."""

    name: str
    run_id: str
    place: str
    model_id: str | None = None
    dataset: "Dataset | None" = None


def log_stages(logger: MlflowLogger, stages: Sequence[StageRun]) -> list[LoggedStage]:
    """The runs of the stages, inputs first; a stage without one yet gets it. What was served is the job's own run."""
    kept = [stage for stage in stages if stage.kind != "serve"]
    if not kept:
        return []
    experiment_id = stage_experiment(logger.tracking)
    found: dict[str, LoggedStage] = {}
    with logger.tracking.database_lock():  # two jobs at once log a stage once
        for stage in kept:
            found[stage.key] = _find(logger, stage, experiment_id) or _log(logger, stage, experiment_id, found)
    return list(found.values())


def stage_experiment(tracking: Tracking) -> str:
    """The id of the experiment that has the runs of stages."""
    return replace(tracking, experiment=f"{tracking.experiment} stages").connect()[1]


def _find(logger: MlflowLogger, stage: StageRun, experiment_id: str) -> LoggedStage | None:
    """The run of the stage as it was built last: a stage that was built again has the digest of its former run."""
    found = manifest.read_manifest(stage.path)
    wanted = f"tags.`tandem.digest` = '{_digest(stage)}' and attributes.status = 'FINISHED'"
    wanted += f" and attributes.end_time = {int(1000 * _built_s(found))}" if found else ""
    runs = logger.client.search_runs([experiment_id], wanted, max_results=1)
    if not runs:
        return None
    made = [one.model_id for one in (runs[0].outputs.model_outputs if runs[0].outputs else [])]
    return _logged(stage, runs[0].info.run_id, experiment_id, made[0] if made else None)


def _logged(stage: StageRun, run_id: str, experiment_id: str, model_id: str | None) -> LoggedStage:
    place = f"#/experiments/{experiment_id}/runs/{run_id}"
    return LoggedStage(stage.name, run_id, place, model_id, _corpus_dataset(stage))


def _digest(stage: StageRun) -> str:
    found = manifest.read_manifest(stage.path)
    return found.digest if found else stage.key


def _built_s(found: Manifest) -> float:
    """When it was built, in seconds since 1970; its run in MLflow ended then."""
    return datetime.fromisoformat(found.built).timestamp()


def _log(
    logger: MlflowLogger, stage: StageRun, experiment_id: str, known: Mapping[str, LoggedStage]
) -> LoggedStage:  # fmt: skip
    found = manifest.read_manifest(stage.path)
    ended_s = _built_s(found) if found else None
    started_s = ended_s - stage.seconds if ended_s else None
    run_id = logger.start_run(stage.key, None, prefix_tags(_lineage_tags(stage, found)), started_s, experiment_id)
    with logger.ending(run_id, ended_s=ended_s):
        _log_inputs(logger, stage, run_id, known)
        _log_results(logger, stage, run_id, found)
        model_id = _log_model(logger, stage, run_id, found.args if found else {}) if _is_model(stage) else None
    return _logged(stage, run_id, experiment_id, model_id)


def _log_inputs(logger: MlflowLogger, stage: StageRun, run_id: str, known: Mapping[str, LoggedStage]) -> None:
    used = [known[key] for key in stage.inputs.values() if key in known]
    datasets = [one.dataset for one in used if one.dataset]
    logger.log_inputs(run_id, datasets, "training", [one.model_id for one in used if one.model_id])


def _log_results(logger: MlflowLogger, stage: StageRun, run_id: str, found: Manifest | None) -> None:
    args, ended_s = (found.args, _built_s(found)) if found else ({}, None)
    logger.log_params(run_id, _params(args))
    numbers, curves = _read_numbers(stage.path, _setting_names(args))
    logger.log_metrics(run_id, {**select_numbers(numbers), "build_s": stage.seconds}, ended_s)
    logger.log_curves(run_id, _curve_points(curves, ended_s - stage.seconds if ended_s else 0.0, ended_s or 0.0))
    logger.log_files(run_id, _small_files(stage.path), "artifact")
    logger.log_files(run_id, sorted(stage.path.glob("figures/*.png")), "figures")
    if found:
        files = {name: asdict(file) for name, file in found.files.items()}
        logger.log_text(run_id, "files.json", json.dumps(files, indent=1))
        logger.log_text(run_id, "args.json", json.dumps(mask_secrets(found.args), indent=1))


def _lineage_tags(stage: StageRun, found: Manifest | None) -> dict[str, str | None]:
    tags = {"kind": stage.kind, "path": str(stage.path), "digest": stage.key}
    inputs = json.dumps(found.inputs if found else dict(stage.inputs))
    known = {"digest": found.digest, "target": found.target, "revision": found.revision} if found else {}
    return {**tags, "inputs": inputs, **known}


def _params(args: Mapping[str, Any]) -> dict[str, str]:
    """The first settings of the stage; all of them are in args.json."""
    named = {key: value for key, value in flatten(args).items() if not key.endswith("_target_")}
    return dict(list(named.items())[:_MAX_PARAMS])


def _setting_names(args: Mapping[str, Any]) -> set[str]:
    """The names in the arguments: a number under one of them is a setting, no result."""
    return _MACHINE_KEYS.union(*(key.split(".") for key in flatten(args)))


def _read_numbers(folder: Path, settings: set[str]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """The results in the artifact's files, by FILE/KEY: numbers, and lists of numbers."""
    leaves: dict[str, Any] = {}
    for name in _METRIC_FILES:
        if (folder / name).is_file():
            content = json.loads((folder / name).read_text(encoding="utf-8"))
            leaves |= dict(_leaves(content, Path(name).stem, settings))
    numbers = {place: float(leaf) for place, leaf in leaves.items() if not isinstance(leaf, list)}
    return numbers, {place: leaf for place, leaf in leaves.items() if isinstance(leaf, list)}


def _leaves(node: Any, place: str, settings: set[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key not in settings:
                yield from _leaves(value, f"{place}/{key}", settings)
    elif _is_number(node) or (isinstance(node, list) and len(node) > 1 and all(map(_is_number, node))):
        yield place, node


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _curve_points(curves: Mapping[str, list[float]], started_s: float, ended_s: float) -> Iterator[CurvePoint]:
    """The curves over their steps; times run evenly from the start of the stage to its end."""
    for name, values in curves.items():
        last = len(values) - 1
        for step in sorted({round(i * last / (MAX_POINTS - 1)) for i in range(MAX_POINTS)}):
            yield CurvePoint(name, values[step], step, started_s + (ended_s - started_s) * step / last)


def _small_files(folder: Path) -> list[Path]:
    """Reports, plots and settings; weights are in the model."""
    return [path for path in _files(folder) if _is_small(path)]


def _is_small(path: Path) -> bool:
    return path.suffix in _SMALL_SUFFIXES and path.stat().st_size <= _MAX_SMALL_NBYTES


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_file() and path.name != manifest.MANIFEST_FILE]


def _is_model(stage: StageRun) -> bool:
    return stage.kind == "train" and any(stage.path.glob("*.safetensors"))


def _log_model(logger: MlflowLogger, stage: StageRun, run_id: str, args: Mapping[str, Any]) -> str:
    """The trained model; its files, unless they are too large to be kept twice or were built by an earlier command."""
    from mlflow.entities import LoggedModelOutput

    tags = {key: value for key, value in prefix_tags({"digest": stage.key, "path": str(stage.path)}).items() if value}
    client, name = logger.client, stage.key.replace(".", "_")
    model = client.create_logged_model(logger.experiment_id, name, run_id, tags, _params(args), stage.name)
    for path in _files(stage.path) if not stage.cached else []:
        if path.stat().st_size <= _MAX_LOGGED_NBYTES:
            client.log_model_artifact(model.model_id, str(path))
    client.finalize_logged_model(model.model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, 0)])
    return str(model.model_id)


def _corpus_dataset(stage: StageRun) -> "Dataset | None":
    """The data set that a stage made; None for any other stage."""
    rows = sorted(path.name for path in stage.path.glob("*.jsonl"))
    return _dataset(stage.name, _digest(stage), {"uri": str(stage.path)}, {"files": rows}) if rows else None


def served_datasets(job: JobContext) -> "list[Dataset]":
    """The data sets of the workloads that the job served, identified by what their stages recorded of them."""
    found: dict[str, Dataset] = {}
    for stage in job.stages:
        record = manifest.read_manifest(stage.path) if stage.kind == "serve" else None
        if record and (source := served_dataset(record)):
            one = _workload_dataset(job, record.args["setup"]["workload"], mask_secrets(source))
            found[one.digest] = one
    return list(found.values())


def _workload_dataset(job: JobContext, workload: Mapping[str, Any], source: Mapping[str, Any]) -> "Dataset":
    digest = hashlib.sha256(json.dumps(source, sort_keys=True, default=str).encode()).hexdigest()
    target = str(workload["dataset"].get("_target_", "dataset")).rpartition(".")[2]
    sizes = {key: workload[key] for key in ("num_prompts", "seed", "devices") if key in workload}
    return _dataset(job.choices.get("workload", target), digest, source, sizes)


def _dataset(name: str, digest: str, source: Mapping[str, Any], profile: Mapping[str, Any]) -> "Dataset":
    from mlflow.entities import Dataset

    return Dataset(name, digest[:12], "local", json.dumps(source), None, json.dumps(profile))
