"""Turns a resolved configuration into ordered stages, and rejects what cannot work before any stage runs.

The options of a stage are resolved copies of what its node names, so its digest depends on nothing else.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.artifacts.own_code import code_digests
from pipeline.artifacts.stage import REFERENCE, Stage
from pipeline.config.build import TARGET, ConfigSchema, PendingArtifact, construct, raise_placed
from pipeline.errors import ConfigError

STAGE_KINDS = ("train", "profile", "serve", "report", "service")
"""In the order in which they run; `stage=profile` stops before the first of a later kind."""

_STAGE_KEYS = frozenset({TARGET, "_kind_", "_version_", "_resources_"})
"""Keys of a stage's node that are not passed to its function."""


@dataclass(frozen=True)
class Plan:
    """The needed stages by name, inputs first, and their kinds."""

    stages: Mapping[str, Stage]
    kinds: Mapping[str, str]

    def goals(self, stop: str) -> list[Stage]:
        """The stages to build for `stage=train` or `stage=profile`: all up to that kind."""
        last = STAGE_KINDS.index(stop) + 1
        return [stage for name, stage in self.stages.items() if self.kinds[name] in STAGE_KINDS[:last]]

    @property
    def serve(self) -> Stage:
        return next(stage for name, stage in self.stages.items() if self.kinds[name] == "serve")


def make_plan(
    nodes: Mapping[str, Mapping[str, Any]], schema: ConfigSchema, folder: Callable[[Stage], Path],
    goals: tuple[str, ...] = ("serve",),
) -> Plan:  # fmt: skip
    """The stages of `nodes` that `goals` need; `folder` of a stage holds its artifact once it is built.

    Raises ConfigError for unknown stages, options that exclude each other, and stages that need each other.
    """
    planner = _Planner(nodes, schema, folder)
    wanted = [planner.stage(goal, ()) for goal in goals]
    stages = _read_stages(planner.stages, wanted)
    planner.raise_problem(stages)
    return Plan(stages, {name: _stage_kind(planner.nodes[name], name) for name in stages})


def _read_stages(stages: Mapping[str, Stage], wanted: Iterable[Stage]) -> dict[str, Stage]:
    """Those of `stages` that are wanted, or read by one that is."""
    read = {digest for goal in wanted for digest in (goal.digest, *goal.ancestors)}
    return {name: stage for name, stage in stages.items() if stage.digest in read}


class _Planner:
    def __init__(
        self, nodes: Mapping[str, Mapping[str, Any]], schema: ConfigSchema, folder: Callable[[Stage], Path]
    ) -> None:
        self.nodes, self.schema, self.folder = nodes, schema, folder
        self.stages: dict[str, Stage] = {}
        self.problems: dict[str, ConfigError] = {}
        """Stage -> the error in its options, inputs first. It is raised if a goal needs that stage."""

    def stage(self, name: str, path: tuple[str, ...]) -> Stage:
        if name in path:
            raise ConfigError(f"stages need each other in a circle: {' -> '.join((*path, name))}.")
        if name not in self.nodes:
            needed_by = f"stage {path[-1]!r} needs" if path else "asked for is"
            raise ConfigError(
                f"{needed_by} {name!r}, which is none of: {', '.join(sorted(self.nodes))}. Stages come with the "
                "choices of groups: model=tiny brings the tasks of workload=tiny, model=smollm2 the questions of "
                "workload=self_asked. With every model go public data sets (workload=spec_bench data_root=FOLDER) and "
                "requests without text (workload=synthetic runtime=simulated runtime/outcomes=constant)."
            )
        if name not in self.stages:
            self.stages[name] = self._make_stage(name, path)
        return self.stages[name]

    def raise_problem(self, stages: Iterable[str]) -> None:
        """Raises the first error in the options of `stages`."""
        for name in self.problems:
            if name in stages:
                raise self.problems[name]

    def _make_stage(self, name: str, path: tuple[str, ...]) -> Stage:
        node = self.nodes[name]
        if not isinstance(node, Mapping) or TARGET not in node:
            raise ConfigError(f"stages.{name}: no {TARGET} says which function makes it.")
        resources = node.get("_resources_") or {}
        options = {key: value for key, value in node.items() if key not in _STAGE_KEYS}
        data = self.schema.coerce_target({TARGET: node[TARGET], **options, **resources}, name)
        args = {key: value for key, value in data.items() if key != TARGET and key not in resources}
        inputs = {needed: self.stage(needed, (*path, name)) for needed in sorted(set(_references(args)))}
        where = {key: data[key] for key in resources}
        unread = self._checked(node[TARGET], args, where, name)
        try:
            code = code_digests(_modules({TARGET: node[TARGET], **args}))
            return Stage(name, node[TARGET], args, int(node.get("_version_", 1)), inputs, where, code, unread)
        except (ValueError, TypeError) as problem:
            raise self.problems.get(name) or ConfigError(f"stages.{name}: {problem}") from problem

    def _checked(self, path: str, args: Mapping[str, Any], resources: Mapping[str, Any], name: str) -> frozenset[str]:
        """The inputs that the stage does not read. Keeps the problem of options that are refused."""
        try:
            objects = construct(args, self._pending, name)
            _check_arguments(path, objects, args, name)
            construct(resources, None, name)
            return self._unread(path, objects, args)
        except ConfigError as problem:
            self.problems[name] = problem
            return frozenset()

    def _unread(self, path: str, args: Mapping[str, Any], data: Mapping[str, Any]) -> frozenset[str]:
        """The inputs that `unread_NAME`, if the module of the stage's function `NAME` has one, leaves alone at every
        place where `data` names them.
        """
        unread = _beside(path, "unread")
        left = [one.folder for one in unread(**args) if isinstance(one, PendingArtifact)] if unread else []
        named = Counter(_references(data))
        return frozenset(name for name in named if left.count(self.folder(self.stages[name])) == named[name])

    def _pending(self, needed: str) -> PendingArtifact:
        stage = self.stages[needed]
        return PendingArtifact(self.folder(stage), stage.args)


def _check_arguments(path: str, args: Mapping[str, Any], data: Mapping[str, Any], where: str) -> None:
    """Calls `check_NAME`, if the module of the stage's function `NAME` has one; `data` is what `args` were made of.

    Raises ConfigError with its message for arguments that are valid alone but not together.
    """
    check = _beside(path, "check")
    try:
        if check:
            check(**args)
    except (Exception, SystemExit) as problem:
        raise_placed(problem, {**data, TARGET: path}, where)


def _beside(path: str, what: str) -> Any:
    """The function `WHAT_NAME` in the module of the function `NAME`; None if there is none."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), f"{what}_{name}", None)


def _stage_kind(node: Mapping[str, Any], name: str) -> str:
    kind = node.get("_kind_", "train")
    if kind not in STAGE_KINDS:
        raise ConfigError(f"stages.{name}._kind_ is {kind!r}; allowed are {', '.join(STAGE_KINDS)}.")
    return str(kind)


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _references(item)
    elif isinstance(node, Mapping):
        if REFERENCE in node:
            yield node[REFERENCE]
        else:
            for item in node.values():
                yield from _references(item)


def _modules(node: Any) -> Iterator[str]:
    """The module of each `_target_`."""
    if isinstance(node, Mapping):
        if isinstance(target := node.get(TARGET), str):
            yield target.rpartition(".")[0]
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _modules(item)


def build_arguments(stage: Stage, artifact: Callable[[str], Path]) -> dict[str, Any]:
    """The arguments of the stage's function, as objects; `artifact` gives the folder of an input that is read."""

    def found(name: str) -> Any:
        return PendingArtifact(options=stage.inputs[name].args) if name in stage.unread else artifact(name)

    return {
        key: construct(value, found, f"{stage.name}.{key}") for key, value in {**stage.args, **stage.resources}.items()
    }
