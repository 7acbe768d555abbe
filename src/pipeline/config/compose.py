"""A composed configuration as plain data: all stages gathered under `stages`, every reference replaced by its value.

`ConfigLibrary` reads the files of groups whose nodes may be given by a plain name, such as `chip: rtx_a6000`.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_type_hints

from hydra.core.object_type import ObjectType
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from pipeline.artifacts.stage import REFERENCE
from pipeline.config.arguments import conf_dir
from pipeline.config.build import TARGET, load
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

STAGE_SECTIONS = {"model": "stages", "hardware": "stages", "policy": "artifacts", "runtime": "stages"}
"""The key below which a group describes its own stages: training a pair, measuring a chip, profiling for a policy,
recording for a simulation."""

composed_choices: ContextVar[Mapping[str, str]] = ContextVar("composed_choices", default=MappingProxyType({}))
"""Group -> the choice of a configuration that is composed from Python; on the command line Hydra knows it."""


def group_choices() -> dict[str, str]:
    """Group -> its choice, such as `policy/draft`: `window`."""
    from hydra.core.hydra_config import HydraConfig

    found = HydraConfig.get().runtime.choices if HydraConfig.initialized() else composed_choices.get()
    return {str(group): str(choice) for group, choice in found.items()}


VALUES_FOR_OTHERS = {"workload": "profiling"}
"""The key below which a group describes values for other groups' stages; where the group itself is meant, it is left
out.
"""


def prepare_hydra() -> None:
    """What Hydra needs to compose conf/ in this process: resolvers, and a source that parses each file once."""
    from pipeline.config.config_files import use_parsed_files

    register_resolvers()
    use_parsed_files()


def register_resolvers() -> None:
    """`${stage:NAME}`: the artifact of a stage; `${process:}`: the number of the command's process; `${machine:}`: its
    machine; `${trained_here:PATHS}`: are all these paths artifacts? `${device_graph:BACKEND}`: the artifact of stage
    `device_graph` where a model runs from a graph, else null; `${hidden_scorers:}`: the policy's trained scorers that
    read hidden states, which what records or exports a draft model needs to know; `${data_file:NAME}`: a file below
    `data_root`, null without one; `${conf_file:NAME}`: a file below conf/; `${timed_as:PATH,NAME}`: the architecture of
    the user's checkpoint at PATH, else NAME; `${pruned_architecture:TARGET,LAYERS}`: TARGET with so many layers, as one
    value that another drafter's file replaces whole.
    """
    import os

    from pipeline.artifacts.environment import machine

    def facts() -> str:
        return ", ".join(f"{key} {value}" for key, value in machine().items())

    OmegaConf.register_new_resolver("stage", lambda name: {REFERENCE: name}, replace=True)
    OmegaConf.register_new_resolver("trained_here", lambda *paths: all(_is_stage(p) for p in paths), replace=True)
    OmegaConf.register_new_resolver("device_graph", _device_graph, replace=True)
    OmegaConf.register_new_resolver("hidden_scorers", _hidden_scorers, replace=True)
    OmegaConf.register_new_resolver("data_file", _data_file, replace=True)
    OmegaConf.register_new_resolver("timed_as", _timed_as, replace=True)
    OmegaConf.register_new_resolver("pruned_architecture", _pruned_architecture, replace=True)
    OmegaConf.register_new_resolver("open_half", _open_half, replace=True)
    OmegaConf.register_new_resolver("conf_file", lambda name: str(conf_dir() / name), replace=True)
    # A launcher's worker processes inherit it: all jobs of a sweep must resolve its folder alike.
    command = os.environ.setdefault("TANDEM_PROCESS", str(os.getpid()))
    OmegaConf.register_new_resolver("process", lambda: command, replace=True)
    OmegaConf.register_new_resolver("machine", facts, replace=True)


def _device_graph(backend: str) -> dict[str, str] | None:
    return {REFERENCE: "device_graph"} if backend == "onnx" else None


def _timed_as(path: Any, name: str) -> Any:
    if path is None or _is_stage(path):
        return name
    return {TARGET: "serving.engines.checkpoint_architecture.checkpoint_architecture", "path": str(path)}


def _pruned_architecture(target: Any, layers: int) -> dict[str, Any]:
    return {TARGET: "serving.hardware.architecture.pruned_architecture", "target": target, "layers": layers}


def _open_half(dataset: DictConfig) -> Any:
    """The data set's open half, on which policies are trained whatever is served."""
    found = OmegaConf.to_container(dataset, resolve=True)
    assert isinstance(found, dict)
    return found | ({"evaluation": "open"} if "evaluation" in found else {})


def _data_file(name: str, *, _root_: DictConfig) -> str | None:
    root = OmegaConf.select(_root_, "data_root")
    return f"{root}/{name}" if root else None


def _hidden_scorers(*, _root_: DictConfig) -> list[Any]:
    """The nodes `policy.SLOT.scorer`, without those whose class says that it reads scores of the logits."""
    policy = OmegaConf.select(_root_, "policy")
    slots = OmegaConf.to_container(policy, resolve=False) if policy is not None else {}
    assert isinstance(slots, dict)
    scored = [name for name, choice in slots.items() if isinstance(choice, dict) and choice.get("scorer")]
    found = [OmegaConf.to_container(policy[name].scorer, resolve=True) for name in scored]
    return [node for node in found if getattr(_made_class(node), "feature_kind", "hidden") == "hidden"]


def _made_class(node: Any) -> Any:
    """The class of the object that a node describes; None if unknown, or if building it will report an error."""
    try:
        target = load(node[TARGET], "")
    except (ConfigError, KeyError):
        return None
    return target if isinstance(target, type) else get_type_hints(target).get("return")


def written_overrides(hydra: Any) -> list[str]:
    """The overrides of a command as they were written, references not replaced; `hydra` is the node of that name."""
    words = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    return [str(word) for word in words] if isinstance(words, list) else []


def select(config: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path of a resolved configuration, or None."""
    node: Any = config
    for key in path.split("."):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def _is_stage(value: Any) -> bool:
    return isinstance(value, Mapping | DictConfig) and REFERENCE in value


def resolve(cfg: DictConfig) -> dict[str, Any]:
    """The configuration as plain data, with all stages under `stages`; raises ConfigError for dangling references."""
    cfg = _gather_stages(cfg)
    try:
        data = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as problem:
        raise ConfigError(f"the configuration cannot be resolved: {problem}") from problem
    assert isinstance(data, dict)
    for group, key in VALUES_FOR_OTHERS.items():
        if isinstance(data.get(group), dict) and key in data[group]:
            own = {name: value for name, value in data[group].items() if name != key}
            data["stages"] = _replaced(data["stages"], data[group], own)
    return {str(key): value for key, value in data.items()}


def _replaced(node: Any, old: Any, new: Any) -> Any:
    """`node` with `new` wherever it has `old`."""
    if node == old:
        return new
    if isinstance(node, dict):
        return {key: _replaced(value, old, new) for key, value in node.items()}
    return [_replaced(value, old, new) for value in node] if isinstance(node, list) else node


def _gather_stages(cfg: DictConfig) -> DictConfig:
    cfg = OmegaConf.create(OmegaConf.to_container(cfg, resolve=False))  # type: ignore[assignment]
    with open_dict(cfg):
        for group, key in STAGE_SECTIONS.items():
            for name, node in _pop(cfg, group, key).items():
                if name in cfg.stages:
                    raise ConfigError(
                        f"{group}.{key}.{name}: another stage has this name already; give it another one."
                    )
                cfg.stages[name] = node
    return cfg


def _pop(cfg: DictConfig, group: str, key: str) -> dict[Any, Any]:
    node = cfg[group].pop(key, None) if group in cfg else None
    plain = OmegaConf.to_container(node, resolve=False) if node is not None else {}
    assert isinstance(plain, dict)
    return plain


@dataclass
class ConfigLibrary:
    """Groups of the search path, a user's own folders included; `groups_by_class` maps a class to the group of its
    names.
    """

    loader: "ConfigLoaderImpl"
    groups_by_class: Mapping[str, str]
    _loaded: dict[tuple[str, str], Any] = field(default_factory=dict)

    def named_config(self, target: str, name: str) -> Any:
        """The node of `name` for the class `target`; None if that class has no names.

        Raises LookupError with the known names.
        """
        group = self.groups_by_class.get(target)
        if group is None:
            return None
        if (group, name) not in self._loaded:
            self._loaded[group, name] = self._load(group, name)
        return self._loaded[group, name]

    def _load(self, group: str, name: str) -> Any:
        found = self.loader.repository.load_config(f"{group}/{name}")
        if found is None:
            raise LookupError(f"there is no {name!r} in {group}. There are: {', '.join(self.names(group))}.")
        return OmegaConf.to_container(found.config, resolve=True)

    def loaded_names(self) -> list[str]:
        """`GROUP/NAME` of every node that was asked for by its name."""
        return [f"{group}/{name}" for group, name in self._loaded]

    def names(self, group: str) -> list[str]:
        return sorted(self.loader.get_group_options(group, ObjectType.CONFIG))
