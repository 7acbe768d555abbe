"""Hydra made ready to compose conf/, and what a composed configuration is asked.

`ConfigLibrary` reads the files of groups whose nodes may be given by a plain name, such as `chip: rtx_a6000`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

composed_choices: ContextVar[Mapping[str, str]] = ContextVar("composed_choices", default=MappingProxyType({}))
"""Group -> the choice of a configuration that is composed from Python; on the command line Hydra knows it."""


composed_words: ContextVar[tuple[str, ...]] = ContextVar("composed_words", default=())
"""The overrides of a configuration that is composed from Python."""


def given_overrides() -> Sequence[str]:
    """The overrides of the command, or of what is composed from Python."""
    from hydra.core.hydra_config import HydraConfig

    return written_overrides(HydraConfig.get()) if HydraConfig.initialized() else composed_words.get()


def group_choices() -> dict[str, str]:
    """Group -> its choice, such as `policy/draft`: `window`."""
    from hydra.core.hydra_config import HydraConfig

    found = HydraConfig.get().runtime.choices if HydraConfig.initialized() else composed_choices.get()
    return {str(group): str(choice) for group, choice in found.items()}


def prepare_hydra() -> None:
    """What Hydra needs to compose conf/ in this process: resolvers, and a source that parses each file once."""
    from pipeline.config.config_files import use_parsed_files
    from pipeline.config.resolve import register_resolvers

    register_resolvers()
    use_parsed_files()


@contextmanager
def apart_from_command() -> Iterator[None]:
    """Hydra as if no command ran in this process: another configuration can be composed within."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    kept, known = GlobalHydra.instance().hydra, HydraConfig.instance().cfg
    GlobalHydra.instance().hydra, HydraConfig.instance().cfg = None, None
    try:
        yield
    finally:
        GlobalHydra.instance().hydra, HydraConfig.instance().cfg = kept, known


def written_overrides(hydra: Any) -> list[str]:
    """The overrides of a command as they were written, references not replaced; `hydra` is the node of that name."""
    from omegaconf import OmegaConf

    words = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    return [str(word) for word in words] if isinstance(words, list) else []


def select(config: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path of a resolved configuration, or None."""
    node: Any = config
    for key in path.split("."):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


@dataclass
class ConfigLibrary:
    """Groups of the search path, a user's own folders included; `groups_by_class` maps a class to the group of its
    names.
    """

    loader: "ConfigLoaderImpl | None"
    """None: of a configuration that was composed before, which knows only what is loaded."""
    groups_by_class: Mapping[str, str]
    loaded: dict[tuple[str, str], Any] = field(default_factory=dict)
    """(group, name) -> the node."""

    def named_config(self, target: str, name: str) -> Any:
        """The node of `name` for the class `target`; None if that class has no names.

        Raises LookupError with the known names.
        """
        group = self.groups_by_class.get(target)
        if group is None:
            return None
        if (group, name) not in self.loaded:
            self.loaded[group, name] = self._load(group, name)
        return self.loaded[group, name]

    def _load(self, group: str, name: str) -> Any:
        from omegaconf import OmegaConf

        if self.loader is None:
            raise LookupError(f"{name!r} of {group} was not asked for when this was composed.")
        found = self.loader.repository.load_config(f"{group}/{name}")
        if found is None:
            raise LookupError(f"there is no {name!r} in {group}. There are: {', '.join(self.names(group))}.")
        return OmegaConf.to_container(found.config, resolve=True)

    def loaded_names(self) -> list[str]:
        """`GROUP/NAME` of every node that was asked for by its name."""
        return [f"{group}/{name}" for group, name in self.loaded]

    def names(self, group: str) -> list[str]:
        from hydra.core.object_type import ObjectType

        assert self.loader is not None
        return sorted(self.loader.get_group_options(group, ObjectType.CONFIG))
