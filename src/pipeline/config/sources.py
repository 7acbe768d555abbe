"""The files that a configuration was composed of, each with a digest of what it says.

A result that is kept names them, so that a file that has changed since is found without composing or running anything.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pipeline.config.arguments import conf_dir
from pipeline.errors import named_yaml_errors

if TYPE_CHECKING:
    from pipeline.config.compose import ConfigLibrary

EXHIBIT = "exhibit"
_HEX_DIGITS = 12
_UNUSED = frozenset({EXHIBIT, "hydra"})
"""The keys of a file that no result depends on, or (the sweep's parameters) that the jobs show."""


@dataclass(frozen=True)
class FileChange:
    """A file of conf/ that says something else than it did; `missing` if it is gone."""

    name: str
    missing: bool = False

    def __str__(self) -> str:
        return f"conf/{self.name}.yaml " + ("is gone" if self.missing else "has changed")


def composed_files(library: "ConfigLibrary", overrides: Sequence[str]) -> dict[str, str]:
    """The files of a composition and of the nodes that it names: `experiment/synera/table4` -> digest.

    A file of a user's own folder is left out: only the project's own are compared later.
    """
    from hydra.types import RunMode

    assert library.loader is not None
    found = library.loader.compute_defaults_list("config", list(overrides), RunMode.RUN)
    names = {one.config_path for one in found.defaults if one.config_path} | set(library.loaded_names())
    return {name: digest for name in sorted(names) if (digest := file_digest(name)) is not None}


def file_digest(name: str, folder: Path | None = None) -> str | None:
    """The digest of what conf/NAME.yaml says, without its exhibit; None without such a file."""
    node = read_named(name, folder)
    if node is None:
        return None
    return _digest({key: value for key, value in node.items() if key not in _UNUSED})


def exhibit_digest(names: Sequence[str], folder: Path | None = None) -> str:
    """The digest of the exhibits and the sweep's parameters that these files declare."""
    nodes = {name: node for name in sorted(names) if (node := read_named(name, folder))}
    shown = {name: {key: node[key] for key in _UNUSED if key in node} for name, node in nodes.items()}
    return _digest({name: own for name, own in shown.items() if EXHIBIT in own})


def changed_files(known: Mapping[str, str], folder: Path | None = None) -> Iterator[FileChange]:
    """The files that no longer say what they said."""
    for name, digest in known.items():
        found = file_digest(name, folder)
        if found != digest:
            yield FileChange(name, missing=found is None)


def read_file(path: Path) -> Mapping[str, Any]:
    """What a file of conf/ says; its package stands under `@package`. Raises ConfigError for what is no YAML."""
    with named_yaml_errors(path):
        return _parsed(path.read_text(encoding="utf-8"))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Mapping[str, Any]:
    """Most files are read for many results."""
    first = text.partition("\n")[0]
    node = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {**(node or {}), "@package": first if first.startswith("# @package") else ""}


def read_named(name: str, folder: Path | None = None) -> Mapping[str, Any] | None:
    """What conf/NAME.yaml says; None without such a file."""
    path = (folder or conf_dir()) / f"{name}.yaml"
    return read_file(path) if path.is_file() else None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:_HEX_DIGITS]
