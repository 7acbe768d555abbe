"""Plans a composed configuration, builds its stages, and reports the result."""

import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from native.machine import cpu_flags
from pipeline.artifacts.progress_display import NullObserver, ProgressCallback, StageObserver, display_for
from pipeline.artifacts.stage import Stage
from pipeline.artifacts.store import Store
from pipeline.config import preflight
from pipeline.config.build import TARGET, ConfigSchema, construct, load
from pipeline.config.compose import ConfigLibrary, given_overrides, group_choices, written_overrides
from pipeline.config.own_classes import error_text
from pipeline.config.plan import Plan, build_arguments, make_plan
from pipeline.errors import INTERRUPTED, ConfigError, UserError, print_interrupted, print_problem

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from pipeline.config.composed_cache import CacheEntry
    from pipeline.report.context import JobContext, StageRun
    from pipeline.report.job import JobReport
    from pipeline.report.mlflow_store import Tracking

STOP_POINTS = ("all", "plan", "train", "profile")
WAIT_VARIABLE = "TANDEM_WAIT_FOR_MLFLOW"
"""Set: a command ends only when its figures are drawn and its run is logged, also if nothing was built."""
REPORTS = ("auto", "full", "line", "quiet")


@dataclass(frozen=True)
class Job:
    """A resolved configuration, ready to be planned and run in the store below its `outputs`."""

    config: Mapping[str, Any]
    library: ConfigLibrary
    observer: StageObserver
    store: Store = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "store", Store(Path(self.config["outputs"]).absolute() / "artifacts"))

    @property
    def schema(self) -> ConfigSchema:
        return ConfigSchema(self.store.content_digest, self.library.named_config)

    @property
    def force(self) -> frozenset[str]:
        """Stages to build again: a list, or one name. Raises ConfigError for what is no name."""
        given = self.config["force"] or ()
        names = given if isinstance(given, list | tuple) else [given]
        wrong = [name for name in names if not isinstance(name, str)]
        if wrong:
            raise ConfigError(f"force has {wrong[0]!r}; name the stages to build again, as in force=[serve].")
        return frozenset(names)

    def plan(self, goal: str = "serve") -> Plan:
        """The stages that `goal` needs. Raises ConfigError for an invalid configuration."""
        try:
            found = self._make_plan((goal,))
        except ConfigError as problem:
            raise _with_conf_names(problem) from problem
        unknown = sorted(self.force - set(found.stages))
        if unknown:
            raise ConfigError(
                f"force: there is no stage {unknown[0]!r} in this run; there are {', '.join(found.stages)}."
            )
        preflight.check_training_seed(self.config)
        preflight.check_profiled_prompts(found)
        if self.library.loader is not None:  # what was composed before was accepted
            preflight.check_dtypes(self.config, found, given_overrides())
        preflight.check_accelerators(self.config, found.stages.values(), self.store.has)
        return found

    def _make_plan(self, goals: tuple[str, ...]) -> Plan:
        return make_plan(self.config["stages"], self.schema, self.store.path, goals)

    def run(self, goals: Sequence[Stage]) -> tuple[Path, frozenset[str]]:
        """Builds missing stages up to `goals`; the folder of the last goal, and the digests of the stages built now.

        Between stages the plan is checked again: a corpus that was built now may have too few prompts to serve.
        """
        from pipeline.artifacts.runner import Runner
        from pipeline.report import sealed_uses

        self.store.ensure_writable()

        def call(stage: Stage, *arguments: Any) -> None:
            if runner.built:
                self._make_plan(tuple(goal.name for goal in goals))
            call_stage(stage, *arguments)

        runner = Runner(self.store, call, self.observer, self.force, sealed_uses.note_build)
        folders = [runner.ensure_built(goal) for goal in goals]
        return folders[-1] if folders else self.store.root, runner.built


def call_stage(stage: Stage, out: Path, work: Path, inputs: Mapping[str, Path], progress: ProgressCallback) -> None:
    """Runs a stage's function with its options, `out`, and, if it declares them, `work` and `progress`.

    Raises ConfigError for whatever ends a function or a class of the user's, SystemExit included.
    """
    target = load(stage.target, stage.name)
    wanted = inspect.signature(target).parameters
    own = {name: value for name, value in (("work", work), ("progress", progress)) if name in wanted}
    try:
        target(out, **own, **build_arguments(stage, inputs.__getitem__))
    except UserError:
        raise
    except (Exception, SystemExit) as problem:
        of_user = error_text(problem, {**stage.args, TARGET: stage.target}, stage.name)
        if of_user or isinstance(problem, ValueError):
            raise ConfigError(of_user or f"{stage.name}: {problem}") from problem
        raise


@runtime_checkable
class NamedConflict(Protocol):
    """An error about choices that do not work together, which can name them in the words of a configuration."""

    def with_names(self, names: Mapping[str, str]) -> Exception:
        """The same error, with names (slot -> its choice) in place of classes."""


def _with_conf_names(problem: ConfigError) -> ConfigError:
    """The error with the names of slot choices in conf in place of their classes."""
    if not isinstance(problem.__cause__, NamedConflict):
        return problem
    names = {group.removeprefix("policy/"): choice for group, choice in group_choices().items() if "policy/" in group}
    return ConfigError(str(problem.__cause__.with_names(names)))


def create_job(cfg: "DictConfig") -> Job:
    """The job of a composed configuration. Raises ConfigError if it cannot be resolved."""
    from hydra.core.global_hydra import GlobalHydra

    from pipeline.config.resolve import resolve

    loader: Any = GlobalHydra.instance().config_loader()
    report = _report_mode(str(cfg.report))
    observer = NullObserver() if report == "quiet" else display_for(sys.stderr, brief=report == "line")
    return Job(resolve(cfg), ConfigLibrary(loader, cfg.named_configs), observer)


def _report_mode(wanted: str) -> str:
    """The mode of a job's printed report. Raises ConfigError for an unknown one."""
    if wanted not in REPORTS:
        raise ConfigError(f"report is {wanted!r}; allowed are {', '.join(REPORTS)}.")
    return wanted if wanted != "auto" else "line" if _is_swept() else "full"


def _is_swept() -> bool:
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def run(cfg: "DictConfig", entry: "CacheEntry | None" = None) -> "JobReport | None":
    """Plans, builds and reports one job; `entry` keeps the configuration of a plan. Raises UserError for mistakes of a
    user.
    """
    stop = str(cfg.stage)
    job = create_job(cfg)
    if preflight.TRIAL in job.config:
        preflight.check_chosen_on_open_prompts(job.config, "a search")
    goal, unread = str(cfg.goal), preflight.unread_words(given_overrides(), group_choices(), lambda: _references(cfg))
    _print_notes(job, unread)
    if stop == "all" and goal == "serve":
        return _run_and_report(job)
    if stop == "all":
        _build_stage(job, goal)
    elif stop == "plan":
        _print_plan(job, job.plan(goal))
        if entry and not unread and not _is_swept():  # a kept plan does not know what was unread
            entry.keep(cfg, job.config, job.library, _is_secret)
    elif stop in ("train", "profile"):
        plan = job.plan(goal)
        job.run(plan.goals(stop))
        print(describe_plan(job, plan))
    else:
        _build_stage(job, stop)
    return None


def _references(cfg: "DictConfig") -> str:
    """The configuration as text, references not replaced."""
    from omegaconf import OmegaConf

    return str(OmegaConf.to_container(cfg, resolve=False))


def _print_notes(job: Job, unread: Sequence[str] = ()) -> None:
    """Of what is allowed, and probably not meant."""
    chips, dtypes = preflight.unusual_chips(job.library.loaded), preflight.slow_dtypes(job.config, cpu_flags)
    for note in [*unread, *preflight.unusual_values(job.config), *chips, *dtypes]:
        job.observer.note(f"note: {note}")


def print_known_plan(entry: "CacheEntry") -> bool:
    """Prints the plan of a configuration that was composed before.

    False if there is none, or if it cannot be planned: then nothing is printed, and the entry is gone. Hydra composes
    the command again and says what is wrong.
    """
    known = entry.read()
    if known is None:
        return False
    try:
        library = ConfigLibrary(None, known.config["named_configs"], known.nodes)
        observer = NullObserver() if known.config["report"] == "quiet" else display_for(sys.stderr)
        job = Job(known.config, library, observer)
        text = describe_plan(job, job.plan(str(known.config["goal"])))
    except Exception:  # whatever it is, it comes again after Hydra
        entry.drop()
        return False
    _print_notes(job)
    print(text)
    return True


def _is_secret(word: str) -> bool:
    from pipeline.report.mlflow_store import mask_override

    return mask_override(word) != word


def run_to_exit_status(cfg: "DictConfig", entry: "CacheEntry | None" = None) -> int:
    """Runs one job and prints what is wrong with it: a sweep goes on with the next job in any case.

    Of Ctrl-C it says what the stage that was built has not said, and the sweep will not say.
    """
    try:
        run(cfg, entry)
    except KeyboardInterrupt as stopped:
        return INTERRUPTED if hasattr(stopped, "__notes__") or _is_swept() else print_interrupted()
    except Exception as problem:
        return print_problem(problem)
    return 0


def report_blocked(cfg: "DictConfig", problem: UserError) -> int:
    """Reports a job as failed that was not run, because a stage that it needs could not be built."""
    from pipeline.report import job as report

    report.report_failure(problem, _job_context(create_job(cfg)))
    return print_problem(problem)


def planned_goal(job: Job) -> str:
    """The stage that the job plans: the goal, or the one that it stops at. Raises ConfigError for an unknown one."""
    stop = str(job.config["stage"])
    if stop in STOP_POINTS:
        return str(job.config["goal"])
    _check_known(job, stop)
    return stop


def _check_known(job: Job, name: str) -> None:
    nodes = job.config["stages"]
    if name not in nodes:
        known = ", ".join([*STOP_POINTS, *sorted(one for one in nodes if not _is_service(nodes[one]))])
        raise ConfigError(f"stage is {name!r}; allowed are {known}.")


def _is_service(node: Any) -> bool:
    return isinstance(node, Mapping) and node.get("_kind_") == "service"


def _build_stage(job: Job, name: str) -> None:
    """Builds a stage by its name and prints its text files. Raises ConfigError for a service, which leaves none."""
    _check_known(job, name)
    if _is_service(job.config["stages"][name]):
        raise ConfigError(
            f"{name} is no stage that ends: it serves until it is stopped. Run python -m serving.{name} with the same "
            "words, without stage and goal."
        )
    from pipeline.report import job as report

    context = _job_context(job)
    try:
        plan = job.plan(name)
        folder, built = job.run([plan.stages[name]])
    except Exception as problem:
        if name == job.config["goal"] and context.sweep:
            report.report_failure(problem, context)
        raise
    print(describe_plan(job, plan))
    for file in sorted(folder.glob("*.txt")):
        print(f"\n{file.read_text(encoding='utf-8').rstrip()}")
    if plan.kinds[name] == "report" or (name == job.config["goal"] and context.sweep):
        made, files = plan.stages[name], current_files(job, context.overrides)
        context = replace(context, digest=made.digest, files=files, revision=_built_revision(job, made))
        report.report_stage(replace(context, stages=_stage_runs(job, plan, built)), folder)


def _print_plan(job: Job, plan: Plan) -> None:
    """Prints the plan; a job of a sweep leaves it for the sweep's table instead."""
    from hydra.core.hydra_config import HydraConfig

    from pipeline.report import plan as report

    hydra = HydraConfig.get() if HydraConfig.initialized() else None
    if hydra and _is_swept() and _report_mode(str(job.config["report"])) != "full":
        planned = report.plan_stages(plan.stages, plan.kinds, job.store)
        report.write_plan(Path(hydra.runtime.output_dir), written_overrides(hydra), planned)
    else:
        print(describe_plan(job, plan))
    if hydra and not _is_swept():
        report.remove_planned(Path(hydra.runtime.output_dir))


def describe_plan(job: Job, plan: Plan) -> str:
    """The plan as text."""
    from pipeline.report import plan as report

    return report.describe_plan(report.plan_stages(plan.stages, plan.kinds, job.store))


def _run_and_report(job: Job) -> "JobReport":
    """Runs the job and reports its result or its failure to its folder and to MLflow."""
    from pipeline.report import deferred
    from pipeline.report import job as report

    for failure in deferred.take_failures(Path(job.config["outputs"]).absolute()):
        job.observer.note(failure)
    context = _job_context(job)
    try:
        plan = job.plan()
        context = replace(context, digest=plan.serve.digest, files=current_files(job, context.overrides))
        report.report_started(context)
        served, built = job.run([plan.serve])
        context = _with_serving_versions(replace(context, stages=_stage_runs(job, plan, built)), job, plan)
        return (deferred.report_later if deferred.can_defer(context) else report.report_job)(served, context)
    except Exception as problem:
        if context.digest or context.sweep:  # a lone job that could not even be planned left nothing to note
            report.report_failure(problem, context)
        raise


def _with_serving_versions(context: "JobContext", job: Job, plan: Plan) -> "JobContext":
    """The context with the code and versions of the build, which for a cached result may be older."""
    manifest = job.store.manifest(plan.serve)
    return replace(context, revision=manifest.revision, versions=manifest.versions) if manifest else context


def _job_context(job: Job) -> "JobContext":
    from hydra.core.hydra_config import HydraConfig

    from pipeline.artifacts import environment
    from pipeline.report.context import JobContext
    from pipeline.report.mlflow_store import mask_override

    tracking = _tracking(job)
    common = JobContext(
        folder=Path(job.config["outputs"]).absolute(), tracking=tracking, config=job.config,
        versions=environment.versions(), machine=environment.machine(str(job.config["accelerator"])),
        revision=environment.revision(), report=_report_mode(str(job.config["report"])), choices=group_choices(),
    )  # fmt: skip
    if not HydraConfig.initialized():
        return common
    hydra = HydraConfig.get()
    swept = _is_swept()
    return replace(
        common,
        folder=Path(hydra.runtime.output_dir),
        overrides=tuple(written_overrides(hydra)),
        command=() if swept else tuple(map(mask_override, sys.argv[1:])),
        number=int(hydra.job.num) if swept else None,
        sweep=Path(hydra.sweep.dir).absolute() if swept else None,
        may_defer=not swept and WAIT_VARIABLE not in os.environ,
    )


def current_files(job: Job, overrides: Sequence[str]) -> dict[str, str]:
    """The files of conf/ that a job of these overrides is composed of, each with its digest. After planning: that finds
    the nodes given by name. Empty for a configuration composed from Python.
    """
    from hydra.core.hydra_config import HydraConfig

    from pipeline.config.sources import composed_files

    if not HydraConfig.initialized():
        return {}
    search_path = [word for word in HydraConfig.get().overrides.hydra if word.startswith("hydra.searchpath=")]
    return composed_files(job.library, [*overrides, *search_path])


def _built_revision(job: Job, stage: Stage) -> str | None:
    manifest = job.store.manifest(stage)
    return manifest.revision if manifest else None


def _tracking(job: Job) -> "Tracking":
    from pipeline.report.mlflow_store import Tracking

    schema: ConfigSchema = job.schema
    node = {**job.config["tracking"], "outputs": job.config["outputs"]}
    tracking = construct(schema.coerce_target(node, "tracking"), None)
    assert isinstance(tracking, Tracking)
    return tracking


def _stage_runs(job: Job, plan: Plan, built: frozenset[str]) -> "tuple[StageRun, ...]":
    from pipeline.report.context import StageRun

    found = []
    for name, stage in plan.stages.items():
        manifest = job.store.manifest(stage)
        inputs = {needed: other.key for needed, other in stage.read_inputs.items()}
        seconds = manifest.seconds if manifest else 0.0
        cached = stage.digest not in built
        found.append(StageRun(name, stage.key, plan.kinds[name], job.store.path(stage), seconds, cached, inputs))
    return tuple(found)
