"""Configuration files as a library: what may be chosen, and the node that a plain name stands for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf


@dataclass
class ConfigLibrary:
    """Groups of the search path, a user's own folders included; `groups_by_class` maps a class to the group that holds
    its names.
    """

    loader: ConfigLoaderImpl
    groups_by_class: Mapping[str, str]
    _loaded: dict[tuple[str, str], Any] = field(default_factory=dict)

    def named_config(self, target: str, name: str) -> Any:
        """The node that `name` stands for where a `target` is wanted; None where that class has no names.

        Raises LookupError with the names there are.
        """
        group = self.groups_by_class.get(target)
        if group is None:
            return None
        if (group, name) not in self._loaded:
            self._loaded[group, name] = self._load(group, name)
        return self._loaded[group, name]

    def _load(self, group: str, name: str) -> Any:
        if name not in self.names(group):
            raise LookupError(f"there is no {name!r} in {group}. There are: {', '.join(self.names(group))}.")
        found = self.loader.repository.load_config(f"{group}/{name}")
        return OmegaConf.to_container(found.config, resolve=True) if found else None

    def names(self, group: str) -> list[str]:
        return sorted(self.loader.get_group_options(group, ObjectType.CONFIG))


def describe(loader: ConfigLoaderImpl, group: str) -> dict[str, str]:
    """The choices of a group, each with the first line of its file."""
    found = {}
    for name in sorted(loader.get_group_options(group, ObjectType.CONFIG)):
        found[name] = first_line(loader, f"{group}/{name}")
    return found


def first_line(loader: ConfigLoaderImpl, path: str) -> str:
    """The comment that a configuration file begins with."""
    for source in loader.get_search_path().get_path():
        text = _read(source.path, f"{path}.yaml")
        if text.startswith("#"):
            return text.splitlines()[0].lstrip("# ")
    return ""


def _read(root: str, name: str) -> str:
    from importlib import resources
    from pathlib import Path

    scheme, _, rest = root.partition("://")
    if scheme == "file":
        file = Path(rest) / name
        return file.read_text(encoding="utf-8") if file.is_file() else ""
    if scheme == "pkg" and rest:
        entry = resources.files(rest).joinpath(name)
        return entry.read_text(encoding="utf-8") if entry.is_file() else ""
    return ""
