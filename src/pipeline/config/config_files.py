"""Hydra's source of configuration files, which parses each file once a process, by libyaml where PyYAML has it.

Beside it, what else Hydra computes many times when it composes.
"""

import os
from collections import defaultdict
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import omegaconf._utils
import omegaconf.base
import yaml
from hydra._internal import defaults_list
from hydra._internal.core_plugins import file_config_source, importlib_resources_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from omegaconf import AnyNode, OmegaConf, grammar_parser
from omegaconf._utils import get_yaml_loader  # what decides how OmegaConf reads a scalar
from omegaconf.base import Metadata
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from pipeline.config.arguments import conf_dir
from pipeline.errors import named_yaml_errors

_SERIAL_LAUNCHER = "hydra_plugins.tandem_launcher.launcher.SerialLauncher"


class FileConfigSource(file_config_source.FileConfigSource):
    """Files below a folder; a sweep composes each of its jobs from the same 40 files.

    It has the name of Hydra's own, which Hydra registers again in the workers of a parallel launcher: a registered
    source is kept if its name is the same, and another name is refused.
    """

    _files: ClassVar[dict[tuple[str, int, int, int], "_ParsedFile"]] = {}

    def load_config(self, config_path: str) -> ConfigResult:
        path = os.path.join(self.path, self._normalize_file_name(config_path))
        try:
            stat = os.stat(path)
        except OSError:
            return super().load_config(config_path)  # which says what is missing
        key = (os.path.realpath(path), stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size)
        if key not in self._files:
            self._files[key] = self._parse(path)
        file = self._files[key]
        return ConfigResult(self.provider, self.full_path(), file.config(), dict(file.header))

    @classmethod
    def read_files(cls, folder: Path) -> set[Path]:
        """The files below a folder that this process has read."""
        return {Path(path) for path, *_ in cls._files if Path(path).is_relative_to(folder)}

    def _parse(self, path: str) -> "_ParsedFile":
        file = Path(path)
        with named_yaml_errors(file):
            text = file.read_text(encoding="utf-8")
            return _ParsedFile(yaml.load(text, Loader=_loader()) or {}, self._get_header_dict(text[:512]))


class ImportlibResourcesConfigSource(importlib_resources_config_source.ImportlibResourcesConfigSource):
    """Files in a package. Hydra's own, which each composition reads, are parsed once a process. The class has the name
    of Hydra's for the reason that `FileConfigSource` has.
    """

    _kept: ClassVar[dict[str, ConfigResult]] = {}

    def load_config(self, config_path: str) -> ConfigResult:
        if self.path != "hydra.conf":
            return super().load_config(config_path)
        if config_path not in self._kept:
            self._kept[config_path] = super().load_config(config_path)
        kept = self._kept[config_path]
        return ConfigResult(self.provider, kept.path, deepcopy(kept.config), dict(kept.header))


@dataclass
class _ParsedFile:
    """What a file says. A run composes once and is given the only configuration; a sweep is given copies of another,
    because Hydra changes what it gets.
    """

    node: Any
    header: Mapping[str, str | None]
    _num_readers: int = 0
    _copied: Any = None

    def config(self) -> Any:
        self._num_readers += 1
        if self._num_readers == 1:
            return OmegaConf.create(self.node)
        if self._copied is None:
            self._copied = OmegaConf.create(self.node)
        return deepcopy(self._copied)  # takes less time than to create another


def use_parsed_files() -> None:
    """Makes Hydra compose from parsed files in this process, and conf/ have the launchers that it names.

    A sweep that names none has `SerialLauncher` in place of Hydra's own; other programs that load the plugin keep that.
    """
    Plugins.instance()  # registers Hydra's own source, which is replaced then, and launchers of installed plugins
    for source in (FileConfigSource, ImportlibResourcesConfigSource):
        SourcesRegistry.instance().types[source.scheme()] = source
    defaults_list._create_interpolation_map = _interpolation_map  # type: ignore[assignment]
    launchers = ConfigStore.instance().repo.get("hydra", {}).get("launcher", {})
    omegaconf.base.Box._re_parent = _re_parent  # type: ignore[method-assign]
    omegaconf.base.Metadata.__deepcopy__ = _copied_metadata  # type: ignore[attr-defined]
    AnyNode.__deepcopy__ = _copied_value  # type: ignore[method-assign]
    for module in (omegaconf.base, omegaconf._utils):
        module.parse = _parsed_text  # type: ignore[attr-defined]
    for file in (conf_dir() / "hydra" / "launcher").glob("*.yaml"):
        launchers.pop(file.name, None)  # Hydra would check our file against a plugin's options of the same name
    ConfigStore.instance().store(name="basic", node={"_target_": _SERIAL_LAUNCHER}, group="hydra/launcher")


_hydras_map = defaults_list._create_interpolation_map


def _interpolation_map(overrides: Any, defaults: list[Any], self_added: bool) -> Any:
    """What a reference in a list of defaults may name: Hydra makes it for each file, also where none refers."""
    if any("${" in f"{getattr(one, 'value', '')}{getattr(one, 'path', '')}" for one in defaults):
        return _hydras_map(overrides, defaults, self_added)
    return None


def _re_parent(self: Any) -> None:
    """Tells each node below what holds it, which OmegaConf does for all nodes after each of some 40 merges.

    Where nothing has moved the node's cache of flags stays: two fifths of the time of a composition.
    """
    content = self.__dict__["_content"]
    for node in content.values() if isinstance(content, dict) else content if isinstance(content, list) else (content,):
        is_value = type(node) is AnyNode  # most are; to ask for a Node or a Box takes three times as long
        if not is_value and not isinstance(node, omegaconf.base.Node):
            continue
        if node.__dict__["_parent"] is not self:
            node._set_parent(self)
        if not is_value and isinstance(node, omegaconf.base.Box):
            node._re_parent()


def _copied_metadata(self: Metadata, memo: dict[int, Any]) -> Metadata:
    """As `deepcopy` would copy them, field by field: it asks of each class how that is done, for some 5,000 nodes."""
    made = object.__new__(type(self))
    made.__dict__.update(self.__dict__)
    made.flags = dict(self.flags) if self.flags is not None else None
    made.resolver_cache = deepcopy(self.resolver_cache, memo) if self.resolver_cache else defaultdict(dict)
    return made


def _copied_value(self: AnyNode, memo: dict[int, Any]) -> AnyNode:
    """A copy that is not checked again as a new value is."""
    made = object.__new__(AnyNode)
    made.__dict__.update(self.__dict__, _metadata=_copied_metadata(self._metadata, memo), _flags_cache=None)
    return made


@lru_cache(4096)
def _parsed_text(text: str, rule: str = "configValue", mode: str = "DEFAULT_MODE") -> Any:
    """The parse tree of a value with interpolations: the jobs of a sweep have the same values, read many times."""
    return grammar_parser.parse(text, rule, mode)


@cache
def _loader() -> Any:
    """OmegaConf's loader, on libyaml's parser if there is one."""
    loader = get_yaml_loader()
    if not yaml.__with_libyaml__:
        return loader
    from yaml.cyaml import CParser  # type: ignore[attr-defined]

    def start(self: Any, stream: Any) -> None:
        CParser.__init__(self, stream)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)

    return type("CompiledLoader", (CParser, loader), {"__init__": start})
