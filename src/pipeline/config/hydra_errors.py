"""Turns errors of Hydra into messages about the user's command line."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from pipeline.config.arguments import choices_available, conf_dir
from pipeline.errors import ConfigError


@contextmanager
def as_config_errors() -> Iterator[None]:
    """Raises ConfigError for errors of Hydra and OmegaConf."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as problem:
        raise ConfigError(
            _unquoted_value(problem)
            or _unknown_option(problem)
            or _unknown_default(problem)
            or _refused_value(problem)
            or str(problem)
        ) from problem


def _unquoted_value(problem: Exception) -> str | None:
    """The message for a value that Hydra's grammar does not read, such as a path with an ö; else None."""
    from hydra.errors import OverrideParseException

    if not isinstance(problem, OverrideParseException):
        return None
    key, equals, value = problem.override.partition("=")
    if not equals or not value or value[0] in "'\"[{":
        return None
    return (
        f"{problem.override} is not read: a value with letters beyond ASCII or with signs of Hydra's grammar has "
        f"quotes of its own. Write \"{key}='{value}'\"."
    )


def _unknown_option(problem: Exception) -> str | None:
    """The message for an unknown option; None for any other problem."""
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    missing = problem.__cause__
    if not isinstance(missing, ConfigAttributeError | ConfigKeyError) or "Could not override" not in str(problem):
        return None
    path = str(missing.full_key)
    if "/" in path:
        return _unknown_group(path)
    where, _, name = path.rpartition(".")
    known = [str(key) for key in missing.parent_node or () if key not in ("_target_", "hydra")]
    unlisted = [option for option in _class_options(missing.parent_node) if option not in known]
    if name in unlisted:
        return f"{where}.{name} is an option that no file lists; such a one is added: +{path}=VALUE"
    near = next(iter(get_close_matches(name, [*known, *unlisted], 1)), "")
    meant = f" Did you mean {f'+{where}.' if near in unlisted else ''}{near}?" if near else ""
    also = f", and can have {', '.join(unlisted)} (added as +{where}.NAME=VALUE)" if unlisted and not meant else ""
    return f"{where or 'the configuration'} has no {name!r}.{meant} It lists {', '.join(known) or 'nothing'}{also}."


def _refused_value(problem: Exception) -> str | None:
    """What the class of a node, or OmegaConf, says of a value, without Hydra's words around it; else None."""
    from hydra.errors import InstantiationException

    cause = problem.__cause__
    if isinstance(problem, InstantiationException) and isinstance(cause, ValueError):
        return str(cause)
    override = str(problem).removeprefix("Error merging override ")
    if override != str(problem) and str(cause).startswith("Cannot merge DictConfig with ListConfig"):
        key = override.partition("=")[0]
        return f"{override} is a list; {key} is a group of options, as in {key}.NAME=VALUE or {key}={{NAME: VALUE}}"
    return None


def _unknown_default(problem: Exception) -> str | None:
    """The message for a group or a choice that does not exist and that the defaults of a file name; else None."""
    from hydra.errors import MissingConfigException

    named = re.match(r"In '([^']+)': (?:Could not override '([^']+)'\. No match)?", str(problem))
    if isinstance(problem, MissingConfigException) and problem.missing_cfg_file and named:
        return _unknown_choice(named[1], str(problem.missing_cfg_file), problem.options)
    if not named or not named[2] or (conf_dir() / named[2]).is_dir():
        return None
    return f"in {named[1]}.yaml: {_unknown_group(named[2])}"


def _unknown_choice(file: str, path: str, options: Sequence[str] | None) -> str:
    group, _, name = path.rpartition("/")
    known = sorted({*(options or ()), *choices_available([], group)})
    where = f"in {file}.yaml, or in a file with it among its defaults"
    return f"{where}: there is no {group} {name!r}.{suggestion(name, known)} There are: {', '.join(known) or 'none'}."


def _class_options(node: Any) -> tuple[str, ...]:
    """The options of the class that a node names."""
    from omegaconf import DictConfig

    from pipeline.config.build import TARGET, option_names

    target = node.get(TARGET) if isinstance(node, DictConfig) else None
    try:
        return option_names(str(target)) if target else ()
    except ConfigError:
        return ()


def _unknown_group(path: str) -> str:
    where, _, name = path.rpartition("/")
    folder = conf_dir() / where
    known = sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []
    return (
        f"there is no group {path!r}.{suggestion(name, known)} Below {where} there are: {', '.join(known) or 'none'}."
    )


def suggestion(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f" Did you mean {near[0]}?" if near else ""
