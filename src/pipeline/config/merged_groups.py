"""What Hydra merges of the files of chosen groups, kept for the next composition that chooses the same.

The jobs of a sweep mostly differ in values, such as `seed=3`, which Hydra sets after it has merged some 40 files. What
it merged is kept by the words that choose groups; each job has a copy of it, in a fifth of the time.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hydra import version
from hydra._internal import config_loader_impl, defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from pipeline.config.composed_cache import file_stamps

if TYPE_CHECKING:
    from hydra._internal.config_repository import IConfigRepository
    from hydra._internal.defaults_list import DefaultsList
    from hydra.core.default_element import ResultDefault
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

MAX_KEPT = 32
_hydras_list = defaults_list.create_defaults_list
_hydras_merge = ConfigLoaderImpl._compose_config_from_defaults_list


class _KeptDefaults(list[Any]):
    """The files of one choice of groups in the order of their merge, and what they were merged to."""

    merged: "DictConfig | None" = None


_kept: "OrderedDict[tuple[Any, ...], DefaultsList]" = OrderedDict()
"""By all that decides which files are merged, and as what; the least recently used first."""


def keep_merged_groups() -> None:
    """Makes Hydra merge the files of each choice of groups once in this process, as long as no file changes.

    For what composes several times: a command of one job has no use for a copy.
    """
    config_loader_impl.create_defaults_list = _create_defaults_list  # type: ignore[attr-defined]
    ConfigLoaderImpl._compose_config_from_defaults_list = _merge  # type: ignore[method-assign, assignment]


def _create_defaults_list(
    repo: "IConfigRepository",
    config_name: str | None,
    overrides_list: "list[Override]",
    prepend_hydra: bool,
    skip_missing: bool,
) -> "DefaultsList":
    choices, values = _split(repo, overrides_list)
    try:
        sources = tuple(_source_stamps(repo))
    except OSError:  # a file went while it was looked at
        return _hydras_list(repo, config_name, overrides_list, prepend_hydra, skip_missing)
    words = tuple(override.input_line for override in choices)
    key = (version.getbase(), config_name, words, prepend_hydra, skip_missing, sources)
    if key not in _kept:
        made = _hydras_list(repo, config_name, choices, prepend_hydra, skip_missing)
        _kept[key] = replace(made, defaults=_KeptDefaults(made.defaults))
        if len(_kept) > MAX_KEPT:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return replace(_kept[key], config_overrides=values)


def _split(repo: "IConfigRepository", overrides: "Sequence[Override]") -> "tuple[list[Override], list[Override]]":
    """The overrides that choose groups, and those that set values; Hydra passes over what is swept."""
    single = [one for one in overrides if not one.is_sweep_override()]
    choices = [one for one in single if not isinstance(one.value(), dict) and repo.group_exists(one.key_or_group)]
    return choices, [one for one in single if one not in choices]


def _merge(loader: ConfigLoaderImpl, defaults: "list[ResultDefault]", repo: "IConfigRepository") -> "DictConfig":
    if not isinstance(defaults, _KeptDefaults):
        return _hydras_merge(loader, defaults, repo)
    if defaults.merged is None:
        defaults.merged = _hydras_merge(loader, defaults, repo)
    return deepcopy(defaults.merged)


def _source_stamps(repo: "IConfigRepository") -> Iterator[str]:
    """Of all that Hydra may search: folders with their files, and packages, which do not change within a process."""
    for source in repo.get_sources():
        yield f"{source.scheme()}://{source.path}"
        if source.scheme() == "file" and source.available():
            yield from file_stamps(source.path)
