"""Configurations that were composed before: a plan of the same words composes nothing and loads no Hydra.

outputs/.composed/KEY.json: {environment, config, nodes}

KEY is a hash of all that a composition reads: the words, the files of conf/, the project's sources, whose classes
resolvers ask, and Hydra and OmegaConf themselves. Files count by path, size and times of change. The environment
variables that conf/ reads stand in the entry. What depends on anything else is not kept: a user's own folders and
packages, the clock, the machine, the process.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.artifacts import fingerprint
from pipeline.artifacts.own_code import PROJECT_PACKAGES
from pipeline.config.arguments import choices_given, conf_dir

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from pipeline.config.compose import ConfigLibrary

FOLDER = ".composed"
MAX_ENTRIES = 32
_SOURCES = Path(__file__).parents[2]
_INSTALLED = ("hydra", "omegaconf", "yaml")
_REPEATABLE = frozenset(
    {"stage", "trained_here", "device_graph", "hidden_scorers", "data_file", "timed_as", "pruned_architecture",
     "open_half", "conf_file", "oc.env", "oc.select", "oc.create", "oc.decode"}
)  # fmt: skip
"""Resolvers that depend on nothing but the configuration, conf/, the sources and the environment."""
_RESOLVER = re.compile(r"\$\{\s*([\w.]+)\s*:")
_VARIABLE = re.compile(r"\boc\.env:(?:\s*(\w+)\s*[,}])?")
_TARGET_PACKAGE = re.compile(r'"_target_": "(\w+)')


@dataclass(frozen=True)
class ComposedConfig:
    """A resolved configuration, and the nodes (group, name) that its plan asked for by their names."""

    config: Mapping[str, Any]
    nodes: dict[tuple[str, str], Any]


@dataclass(frozen=True)
class CacheEntry:
    """The place of one command's configuration."""

    path: Path

    def read(self) -> ComposedConfig | None:
        """None if it was not composed before, or under other environment variables."""
        try:
            whole = json.loads(self.path.read_text(encoding="utf-8"))
            if whole["environment"] != _environment(whole["environment"]):
                return None
            return ComposedConfig(whole["config"], {(group, name): node for group, name, node in whole["nodes"]})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(
        self, cfg: "DictConfig", config: Mapping[str, Any], library: "ConfigLibrary", is_secret: Callable[[str], bool]
    ) -> None:
        """Keeps what `cfg` was resolved to, if the same command will be resolved to the same.

        Nothing is kept of a command with a secret, in a word or in a variable that conf/ reads; `is_secret` is asked
        about NAME=VALUE.
        """
        with suppress(OSError, TypeError):  # no place for it, or nothing that JSON holds
            environment = _environment(_read_variables())
            nodes = [[group, name, node] for (group, name), node in library.loaded.items()]
            whole = {"environment": environment, "config": dict(config), "nodes": nodes}
            text = json.dumps(whole)
            given = [*_words(), *(f"{name}={value}" for name, value in environment.items())]
            exact = json.loads(text) == whole and "" not in environment
            if exact and _is_repeatable(cfg, library, text) and not any(map(is_secret, given)):
                self._make_room()
                fingerprint.write_atomic(self.path, text)

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)

    def _make_room(self) -> None:
        oldest_first = sorted(self.path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in oldest_first[: -MAX_ENTRIES + 1]:
            path.unlink(missing_ok=True)


def find_entry(argv: Sequence[str]) -> CacheEntry | None:
    """The entry of a plan with these words; None for a command that Hydra composes each time."""
    outputs = choices_given(argv, "outputs") or ["outputs"]
    always = any(word.startswith("-") or "hydra" in word or "${" in word for word in argv)
    if "stage=plan" not in argv or always or len(outputs) > 1:
        return None
    try:
        return CacheEntry(Path(outputs[0]).absolute() / FOLDER / f"{_key(argv)}.json")
    except OSError:  # a file went while it was looked at
        return None


def _key(argv: Sequence[str]) -> str:
    digest = sha256()
    for part in (os.getcwd(), *argv, *file_stamps(conf_dir()), *_source_stamps(), *_installed_stamps()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:32]


def _source_stamps() -> Iterator[str]:
    for package in PROJECT_PACKAGES:
        if (_SOURCES / package).is_dir():
            yield from file_stamps(_SOURCES / package, ".py")


def _installed_stamps() -> Iterator[str]:
    """Of what composes, and of the folders of Hydra's plugins."""
    for package in _INSTALLED:
        if (spec := find_spec(package)) and spec.origin:
            yield _stamp(spec.origin, os.stat(spec.origin))
    if plugins := find_spec("hydra_plugins"):
        yield from (_stamp(folder, os.stat(folder)) for folder in plugins.submodule_search_locations or ())


def file_stamps(folder: "str | Path", suffix: str = "") -> Iterator[str]:
    """Path, size and times of change of each file below a folder with that ending. Raises OSError if one goes away."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir():
                yield from file_stamps(entry.path, suffix) if entry.name != "__pycache__" else ()
            elif entry.name.endswith(suffix):
                yield _stamp(entry.path, entry.stat())


def _stamp(path: str, stat: os.stat_result) -> str:
    return f"{path}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}"


def _environment(names: Iterable[str]) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in sorted(names)}


def _read_variables() -> set[str]:
    """The variables that composed files name; "" stands for one whose name is not written out."""
    from pipeline.config.config_files import FileConfigSource

    files = FileConfigSource.read_files(conf_dir().resolve())
    texts = (path.read_text(encoding="utf-8") for path in files)
    return {name for text in texts for name in _VARIABLE.findall(text)}


def _words() -> list[str]:
    from hydra.core.hydra_config import HydraConfig

    from pipeline.config.compose import written_overrides

    return written_overrides(HydraConfig.get())


def _is_repeatable(cfg: "DictConfig", library: "ConfigLibrary", text: str) -> bool:
    """True if Hydra searched nothing but conf/, and all resolvers and classes are known; `text` is the entry."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    sources = {(source.schema, source.path) for source in HydraConfig.get().runtime.config_sources}
    if sources != {("pkg", "hydra.conf"), ("file", str(conf_dir())), ("structured", "")}:
        return False
    named = [(conf_dir() / f"{name}.yaml").read_text(encoding="utf-8") for name in library.loaded_names()]
    written = [str(OmegaConf.to_container(cfg, resolve=False)), *named]
    resolvers = {name for each in written for name in _RESOLVER.findall(each)}
    targets = set(_TARGET_PACKAGE.findall(text))
    return resolvers <= _REPEATABLE and targets <= set(PROJECT_PACKAGES)
