"""Turns configuration into objects: a node's `_target_` names a class or a function, whose signature is the schema.

`ConfigSchema.coerce` checks a node against it and returns canonical data (every option present, except later ones
at their default; every type right, files by their content), of which a stage's digest is computed; `construct` turns
that data into objects.
"""

import importlib
import inspect
import os
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from pipeline.artifacts.own_code import is_own
from pipeline.artifacts.stage import CONTENT, REFERENCE
from pipeline.config.own_classes import error_text, missing_members
from pipeline.errors import ConfigError

TARGET = "_target_"
DATA_REVISION = "_data_"
"""Beside a class's options in canonical data: what its classmethod `data_revision` says, a digest of data of the
project that its objects read. It counts for identities, and is no option. None: it is left out.
"""
RUNNER_ARGUMENTS = frozenset({"out", "work", "progress"})
"""Arguments that the runner gives to a stage function."""


@dataclass(frozen=True)
class TargetParameter:
    annotation: Any
    default: Any
    """`inspect.Parameter.empty` if the option is required."""
    omitted_at_default: bool = False
    """True for an option that came later than artifacts did: at its default it is left out of their identity."""


@dataclass(frozen=True)
class PendingArtifact:
    """Stands for an artifact while a plan is made; its `folder` may not exist yet. `options` are those of its stage,
    empty where they are not known.
    """

    folder: Path = Path("not-built")
    options: Mapping[str, Any] = field(default_factory=dict)

    def __fspath__(self) -> str:
        return str(self.folder)


@dataclass(frozen=True)
class ConfigSchema:
    """Checks nodes; `content_digest` gives a file's digest, `named_config` the node of a plain name (a chip's)."""

    content_digest: Callable[[Path], str]
    named_config: Callable[[str, str], Any]
    """(class, name) -> node; raises LookupError with the choices; returns None for a class without names."""

    def coerce(self, node: Any, annotation: Any, where: str) -> Any:
        """Canonical data for `node`. Raises ConfigError that names the place."""
        if isinstance(node, Mapping):
            return self._coerce_mapping(node, annotation, where)
        if annotation in (Any, inspect.Parameter.empty) or (isinstance(annotation, type) and annotation is object):
            return _coerce_plain(node, where)
        if node is None:
            return _coerce_none(annotation, where)
        if _is_union(annotation):
            return self._coerce_union(node, annotation, where)
        if annotation is Path:
            return self._coerce_file(node, where)
        if get_origin(annotation) is Literal:
            return _coerce_literal(node, get_args(annotation), where)
        if isinstance(node, list | tuple):
            return self._coerce_sequence(node, annotation, where)
        if isinstance(node, str) and is_dataclass(annotation):
            return self._coerce_named(node, annotation, where)
        return _coerce_scalar(node, annotation, where)

    def coerce_target(self, node: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Canonical data for a node with a `_target_`."""
        path = node[TARGET]
        parameters = _target_parameters(path, where)
        given = {key: value for key, value in node.items() if key != TARGET}
        unknown = sorted(set(given) - set(parameters))
        if unknown:
            raise ConfigError(
                f"{where}: {path} has no option {unknown[0]!r}. Its options: {', '.join(parameters) or 'none'}."
            )
        data: dict[str, Any] = {TARGET: path}
        for name, parameter in parameters.items():
            if name in given:
                data[name] = self.coerce(given[name], parameter.annotation, f"{where}.{name}")
            elif parameter.default is inspect.Parameter.empty:
                raise ConfigError(f"{where}: {path} needs the option {name!r}.")
            else:
                data[name] = self._coerce_default(parameter, f"{where}.{name}")
            if parameter.omitted_at_default and data[name] == parameter.default:
                del data[name]
        if revision := _data_revision(path, where):
            data[DATA_REVISION] = revision
        return data

    def _coerce_default(self, parameter: TargetParameter, where: str) -> Any:
        """The default as if it had been written: both are one identity."""
        default = to_data(parameter.default, where)
        return default if default is None else self.coerce(default, parameter.annotation, where)

    def _coerce_mapping(self, node: Mapping[str, Any], annotation: Any, where: str) -> Any:
        if REFERENCE in node:
            return dict(node)
        if TARGET in node:
            return self.coerce_target(node, where)
        bare = _without_none(annotation)
        if is_dataclass(bare) and isinstance(bare, type):
            return self.coerce_target({**node, TARGET: f"{bare.__module__}.{bare.__qualname__}"}, where)
        arguments = get_args(bare)
        item = arguments[1] if len(arguments) == 2 and get_origin(bare) is not tuple else Any
        if get_origin(bare) in (dict, Mapping, types.MappingProxyType) or bare in (dict, Any) or _is_mapping(bare):
            return {str(key): self.coerce(value, item, f"{where}.{key}") for key, value in node.items()}
        raise ConfigError(
            f"{where}: got a group of options {sorted(map(str, node))} without {TARGET}; a plain value is wanted here."
        )

    def _coerce_union(self, node: Any, annotation: Any, where: str) -> Any:
        problems = []
        for choice in sorted(get_args(annotation), key=lambda one: one is str):  # str accepts numbers
            if choice is not types.NoneType:
                try:
                    return self.coerce(node, choice, where)
                except ConfigError as problem:
                    problems.append(problem)
        raise problems[0]

    def _coerce_file(self, node: Any, where: str) -> dict[str, str]:
        if not isinstance(node, str | Path):
            raise ConfigError(f"{where}: got {node!r}; a path is wanted here.")
        path = Path(node).expanduser().absolute()
        if not path.exists():
            raise ConfigError(
                f"{where}: there is nothing at {path}. Check the path; a relative one is read from {Path.cwd()}."
            )
        try:
            return {CONTENT: self.content_digest(path), "path": str(path)}
        except (ValueError, OSError) as problem:
            raise ConfigError(f"{where}: {problem}") from problem

    def _coerce_sequence(self, node: Sequence[Any], annotation: Any, where: str) -> list[Any]:
        arguments = [a for a in get_args(annotation) if a is not Ellipsis]
        if not arguments and annotation not in (list, tuple, Sequence):
            raise ConfigError(f"{where}: got a list of {len(node)}; {_type_name(annotation)} is wanted.")
        fixed = get_origin(annotation) is tuple and Ellipsis not in get_args(annotation)
        items = arguments if fixed else [arguments[0] if arguments else Any] * len(node)
        if len(items) != len(node):
            raise ConfigError(f"{where}: got {len(node)} values; {len(items)} are wanted.")
        return [
            self.coerce(value, item, f"{where}[{i}]") for i, (value, item) in enumerate(zip(node, items, strict=True))
        ]

    def _coerce_named(self, node: str, annotation: Any, where: str) -> Any:
        try:
            found = self.named_config(f"{annotation.__module__}.{annotation.__qualname__}", node)
        except LookupError as problem:
            raise ConfigError(f"{where}: {problem.args[0]}") from None
        if found is None:
            raise ConfigError(
                f"{where}: got {node!r}; the options of {_type_name(annotation)} are wanted: {field_names(annotation)}."
            )
        return self.coerce(found, annotation, f"{where} ({node})")


def construct(data: Any, artifact: Callable[[str], Path | PendingArtifact] | None, where: str = "") -> Any:
    """The object of canonical data; `artifact` finds a stage's folder, None leaves such parts `PendingArtifact`.

    Raises ConfigError with the message of a class that refuses its values.
    """
    if isinstance(data, list):
        return tuple(construct(item, artifact, f"{where}[{i}]") for i, item in enumerate(data))
    if not isinstance(data, dict):
        return data
    if REFERENCE in data:
        return artifact(data[REFERENCE]) if artifact else PendingArtifact()
    if CONTENT in data:
        return Path(data["path"])
    options = {key: value for key, value in data.items() if key not in (TARGET, DATA_REVISION)}
    built = {key: construct(value, artifact, f"{where}.{key}") for key, value in options.items()}
    if TARGET not in data:
        return built
    target = load(data[TARGET], where)
    if not isinstance(target, type) and any(isinstance(value, PendingArtifact) for value in built.values()):
        target = planned_function(data[TARGET]) or _pending
    _check_protocols(data, built, where)
    try:
        return target(**built)
    except (Exception, SystemExit) as problem:
        raise_placed(problem, data, where)


def raise_placed(problem: BaseException, data: Any, where: str) -> NoReturn:
    """Raises ConfigError for what is wrong with the node `data`: a ValueError, or anything from a user's class."""
    own = error_text(problem, data, where)
    if own or isinstance(problem, ValueError):
        raise ConfigError(own or str(problem)) from problem
    raise problem


def _check_protocols(data: Mapping[str, Any], built: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError for an object of a user's class that lacks a member of what its option's protocol has."""
    for name, value in built.items():
        path = data[name].get(TARGET) if isinstance(data[name], dict) else None
        if not path or not is_own(path) or isinstance(value, PendingArtifact):
            continue
        parameter = _target_parameters(data[TARGET], where).get(name)
        protocol: Any = _without_none(parameter.annotation) if parameter else None
        if missing := missing_members(value, protocol):
            raise ConfigError(
                f"{where}.{name}: {path} has no {' and no '.join(missing)}, which {protocol.__module__}."
                f"{protocol.__name__} asks for; add it to the class."
            )


def planned_function(path: str) -> Callable[..., Any] | None:
    """`planned_NAME` beside the function `NAME`, which gives what a plan knows before the artifacts of its options are
    made; None if its module has none.
    """
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), f"planned_{name}", None)


def _pending(**_: object) -> PendingArtifact:
    return PendingArtifact()


@cache
def load(path: str, where: str) -> Callable[..., Any]:
    """The class or function at a dotted path."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as problem:
        if isinstance(problem, ModuleNotFoundError) and not f"{module}.".startswith(f"{problem.name}."):
            raise ConfigError(
                f"{where}: importing {module} needs {problem.name}, which is not installed here; install it."
            ) from problem
        raise ConfigError(
            f"{where}: there is no {path} ({problem}). {TARGET} is module.name; Python looks for it in the working "
            f"directory {Path.cwd()} and in the folders of PYTHONPATH ({os.environ.get('PYTHONPATH') or 'not set'}), "
            "and one of them has to hold the package."
        ) from problem
    except (Exception, SystemExit) as problem:
        if not is_own(path):
            raise
        said = f": {problem}" if str(problem) else ""
        raise ConfigError(
            f"{where}: importing {module} ended in {type(problem).__name__}{said}. TANDEM_DEBUG=1 shows the traceback."
        ) from problem
    if not callable(found):
        raise ConfigError(f"{where}: {path} is a {type(found).__name__}; {TARGET} names a class or a function.")
    return found  # type: ignore[no-any-return]


def _data_revision(path: str, where: str) -> str | None:
    found: Callable[[], str | None] | None = getattr(load(path, where), "data_revision", None)
    return found() if found else None


def to_data(value: Any, where: str) -> Any:
    """Canonical data for a default value in code."""
    if is_dataclass(value) and not isinstance(value, type):
        own = {f.name: to_data(getattr(value, f.name), f"{where}.{f.name}") for f in fields(value) if f.init}
        return {TARGET: f"{type(value).__module__}.{type(value).__qualname__}", **own}
    if isinstance(value, Mapping):
        return {str(key): to_data(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [to_data(item, f"{where}[{i}]") for i, item in enumerate(value)]
    return _coerce_plain(value, where)


def option_names(path: str) -> tuple[str, ...]:
    """The options of a target. Raises ConfigError if there is no such target."""
    return tuple(_target_parameters(path, ""))


@cache
def _target_parameters(path: str, where: str) -> dict[str, TargetParameter]:
    """The options of a target, by its signature."""
    target = load(path, where)
    hints = get_type_hints(_annotated(target))
    declared = {f.name: f for f in fields(target)} if is_dataclass(target) else {}
    found = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if name in RUNNER_ARGUMENTS or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        field = declared.get(name)
        default = field.default_factory() if field and callable(field.default_factory) else parameter.default
        later = field is not None and bool(field.metadata.get("omitted_at_default"))
        found[name] = TargetParameter(hints.get(name, Any), default, later)
    return found


def _annotated(target: Any) -> Any:
    """What has the annotations of a target's options: a dataclass (whose compiled `__init__` has none), `__init__`, or
    the function.
    """
    if not isinstance(target, type) or is_dataclass(target):
        return target
    return inspect.getattr_static(target, "__init__")


def _without_none(annotation: Any) -> Any:
    """The annotation without `| None`."""
    if not _is_union(annotation):
        return annotation
    choices = [a for a in get_args(annotation) if a is not types.NoneType]
    return choices[0] if len(choices) == 1 else annotation


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _is_mapping(annotation: Any) -> bool:
    origin = get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _coerce_none(annotation: Any, where: str) -> None:
    if annotation is not types.NoneType and types.NoneType not in get_args(annotation):
        hint = " Name one there, or in the option that it is taken from, such as workload.path=FILE."
        raise ConfigError(f"{where}: got null; {_type_name(annotation)} is wanted.{hint if annotation is Path else ''}")


def _coerce_literal(node: Any, choices: tuple[Any, ...], where: str) -> Any:
    if node not in choices:
        raise ConfigError(f"{where}: got {node!r}; allowed are {', '.join(map(str, choices))}.")
    return node


def _coerce_scalar(node: Any, annotation: Any, where: str) -> Any:
    if annotation is float and isinstance(node, int) and not isinstance(node, bool):
        return float(node)
    if annotation is str and type(node) is int:  # a name of digits, such as a power mode's
        return str(node)
    if annotation in (int, float, str, bool):
        if type(node) is annotation:
            return _coerce_plain(node, where)
        raise ConfigError(f"{where}: got {node!r}; {_type_name(annotation)} is wanted.")
    if get_origin(annotation) in (tuple, list, Sequence):
        raise ConfigError(f"{where}: got {node!r}; a list is wanted, as in [{node}].")
    raise ConfigError(
        f"{where}: got {node!r}; a group of options with {TARGET} is wanted ({_type_name(annotation)}); "
        "a file of conf is chosen with a slash, as in policy/draft=window."
    )


def _coerce_plain(node: Any, where: str) -> Any:
    if isinstance(node, float) and not isfinite(node):
        raise ConfigError(f"{where}: got {node}; a finite number is wanted.")
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if isinstance(node, Mapping):
        return {str(key): _coerce_plain(value, f"{where}.{key}") for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_coerce_plain(value, f"{where}[{i}]") for i, value in enumerate(node)]
    raise ConfigError(
        f"{where}: {type(node).__name__} cannot be part of a configuration; use numbers, text, lists and groups."
    )


def _type_name(annotation: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Path: "a path"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def field_names(annotation: Any) -> str:
    return ", ".join(f.name for f in fields(annotation) if f.init)
