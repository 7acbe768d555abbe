"""Logs a job to MLflow: what was chosen, its configuration and environment, and links to the runs of its stages."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pipeline.report import context, mlflow_stages
from pipeline.report.context import JobContext, command_line
from pipeline.report.mlflow_logger import NOTE_TAG, MlflowLogger, prefix_tags, select_numbers
from pipeline.report.mlflow_stages import LoggedStage
from pipeline.report.mlflow_store import changes_result, flatten, mask_override, mask_secrets, split_masked


@contextmanager
def logged_job(logger: MlflowLogger, job: JobContext, parent: str | None, error: str | None = None) -> Iterator[str]:
    """The id of a job's run, open within the block, with its choices, configuration, environment and links to its
    stages.
    """
    linked = mlflow_stages.log_stages(logger, job.stages)
    tags = {"kind": "job", "digest": job.digest, "revision": job.revision, "error": error}
    known = prefix_tags({**tags, "stages": ", ".join(one.run_id for one in linked)})
    run_id = logger.start_run(_run_name(job), parent, {**job_params(job), **known}, job.started_s)
    with logger.ending(run_id, failed=error is not None):
        _log_job(logger, job, run_id, linked, error)
        yield run_id


def _log_job(
    logger: MlflowLogger, job: JobContext, run_id: str, linked: Sequence[LoggedStage], error: str | None
) -> None:  # fmt: skip
    import yaml

    logger.log_params(run_id, job_params(job))
    logger.log_text(run_id, "config.yaml", yaml.safe_dump(mask_secrets(job.config), sort_keys=False))
    logger.log_text(run_id, "overrides.txt", "".join(f"{mask_override(one)}\n" for one in job.overrides))
    if job.command:
        logger.log_text(run_id, "command.txt", f"{command_line(job.command)}\n")
    logger.log_text(run_id, "conf_files.json", json.dumps(job.files, indent=1))
    logger.log_text(run_id, "environment.json", json.dumps(_environment(job), indent=1, default=str))
    models = [one.model_id for one in linked if one.model_id]
    logger.log_inputs(run_id, mlflow_stages.served_datasets(job), "serving", models)
    if job.stages and job.stages[-1].kind != "serve":  # a report: its numbers are the job's own
        goal = job.stages[-1]
        logger.log_metrics(run_id, select_numbers(context.stage_metrics(goal)))
        logger.log_files(run_id, context.stage_figures(goal), goal.name)
    logger.set_tag(run_id, NOTE_TAG, _job_note(linked, error))


_GROUPS = ("policy", "model", "hardware", "network", "workload", "runtime")
_SEEDS = ("seed", "training.seed", "workload.seed")


def job_params(job: JobContext) -> dict[str, str]:
    """What was chosen in each group, the seeds, and what was overridden, masked; the rest is in config.yaml."""
    chosen = {"policy": job.policy, **{group: name for group, name in job.choices.items() if name != "None"}}
    first = {group: chosen[group] for group in _GROUPS if group in chosen}
    seeds = {place: job.config_value(place) for place in _SEEDS}
    given = dict(split_masked(one) for one in job.overrides)
    known = {**first, **dict(sorted(chosen.items())), **{key: one for key, one in seeds.items() if one is not None}}
    known |= {key: value for key, value in given.items() if key not in chosen and key not in seeds}
    return flatten({key: value for key, value in known.items() if changes_result(key)})


def _run_name(job: JobContext) -> str:
    """The policy and the overrides; without overrides, as from Python, what was chosen."""
    given = dict(split_masked(one) for one in job.overrides)
    given.pop("policy", None)
    kept = [f"{key}={value}" for key, value in given.items() if changes_result(key)]
    named = [job.choices[group] for group in ("hardware", "network", "workload") if group in job.choices]
    return " ".join([job.policy, *(kept or named)])


def _environment(job: JobContext) -> dict[str, Any]:
    """Revision, versions, machine and seeds; never the process's environment variables."""
    seeds = {place: job.config_value(place) for place in _SEEDS}
    return {"revision": job.revision, "versions": job.versions, "machine": job.machine, "seeds": seeds}


def _job_note(linked: Iterable[LoggedStage], error: str | None) -> str:
    """Why it failed, and links to the runs of its stages."""
    links = ", ".join(f"[{one.name}]({one.place})" for one in linked)
    return "\n\n".join(filter(None, [f"Failed: {error}" if error else "", f"Stages: {links}" if links else ""]))
