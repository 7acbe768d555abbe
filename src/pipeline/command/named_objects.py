"""Chips and architectures by their names in conf/, without composing a run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.arguments import conf_dir
from pipeline.config.build import ConfigSchema, construct, load
from pipeline.config.compose import ConfigLibrary, prepare_hydra, select

_CHIP, _ARCHITECTURE = "serving.hardware.chip.Chip", "serving.hardware.architecture.Architecture"


class NamedObjects(Mapping[str, Any]):
    """The objects of a class that have names in conf/ or in the user's own folder, each made when it is asked for."""

    def __init__(self, library: ConfigLibrary, target: str) -> None:
        self._library, self._target = library, target
        self._names = library.names(library.groups_by_class[target])
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """Raises ConfigError with the known names for another."""
        if name not in self._made:
            schema = ConfigSchema(str, self._library.named_config)
            data = schema.coerce(name, load(self._target, "speeds"), name)
            self._made[name] = construct(data, None, name)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class Library:
    """Objects that the configuration gives by name."""

    chips: NamedObjects
    architectures: NamedObjects
    fitted: Mapping[str, frozenset[str]]
    """The names in +experiment=clock: of `chips` and of `architectures`."""

    @classmethod
    def open(cls, config_dir: Path | None) -> "Library":
        from hydra._internal.config_loader_impl import ConfigLoaderImpl
        from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
        from omegaconf import OmegaConf

        prepare_hydra()
        folders = ConfigSearchPathImpl()
        for folder in filter(None, (config_dir, conf_dir())):
            folders.append("main", f"file://{folder.absolute()}")
        loader = ConfigLoaderImpl(folders)
        found = [loader.repository.load_config(name) for name in ("config", "experiment/clock")]
        whole, clock = (OmegaConf.to_container(one.config, resolve=False) if one else None for one in found)
        names = ConfigLibrary(loader, _section(whole, "named_configs"))
        scores = _section(clock, "stages.clock_scores")
        fitted = {key: frozenset(scores[key]) for key in ("chips", "architectures")}
        return cls(NamedObjects(names, _CHIP), NamedObjects(names, _ARCHITECTURE), fitted)


def _section(config: Any, path: str) -> Mapping[str, Any]:
    found = select(config, path)
    assert isinstance(found, Mapping), f"conf/ has no {path}"
    return found
