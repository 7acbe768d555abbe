"""A composed configuration as plain data, and what `${NAME:...}` in it stands for.

All stages are gathered under `stages`, and every reference is replaced by its value.
"""

import os
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, get_type_hints

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from pipeline.artifacts.environment import machine
from pipeline.artifacts.stage import REFERENCE
from pipeline.config.arguments import conf_dir
from pipeline.config.build import TARGET, load
from pipeline.errors import ConfigError

STAGE_SECTIONS = {"model": "stages", "hardware": "stages", "policy": "artifacts", "runtime": "stages"}
"""The key below which a group describes its own stages: training a pair, measuring a chip, profiling for a policy,
recording for a simulation."""

VALUES_FOR_OTHERS = {"workload": "profiling"}
"""The key below which a group describes values for other groups' stages; where the group itself is meant, it is left
out.
"""


def resolve(cfg: DictConfig) -> dict[str, Any]:
    """The configuration as plain data, with all stages under `stages`; raises ConfigError for dangling references."""
    cfg = _gather_stages(cfg)
    try:
        known: dict[int, tuple[Any, Any]] = {}
        data: dict[str, Any] = {str(key): _plain(cfg[key], known) for key in cfg}
    except OmegaConfBaseException as problem:
        raise ConfigError(f"the configuration cannot be resolved: {problem}") from problem
    for group, key in VALUES_FOR_OTHERS.items():
        if isinstance(data.get(group), dict) and key in data[group]:
            own = {name: value for name, value in data[group].items() if name != key}
            data["stages"] = _replaced(data["stages"], data[group], own)
    return data


def _plain(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    """The value as dictionaries and lists. A node that several references name is resolved once and copied for each.

    `known`: id of a node -> the node, which keeps its id from being used again, and what it is.
    """
    if not isinstance(value, DictConfig | ListConfig):
        return value
    if id(value) in known:
        return _copied(known[id(value)][1])
    made: Any
    if isinstance(value, DictConfig):
        made = {key: _plain(value[key], known) for key in value}
    else:
        made = [_plain(one, known) for one in value]
    known[id(value)] = value, made
    return made


def _copied(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: _copied(value) for key, value in plain.items()}
    return [_copied(value) for value in plain] if isinstance(plain, list) else plain


def _replaced(node: Any, old: Any, new: Any) -> Any:
    """`node` with `new` wherever it has `old`."""
    if node == old:
        return new
    if isinstance(node, dict):
        return {key: _replaced(value, old, new) for key, value in node.items()}
    return [_replaced(value, old, new) for value in node] if isinstance(node, list) else node


def _gather_stages(cfg: DictConfig) -> DictConfig:
    gathered = deepcopy(cfg)
    if not isinstance(gathered.stages, DictConfig):
        raise ConfigError(f"stages is {gathered.stages!r}; give stages by name, as conf/ does.")
    with open_dict(gathered):
        for group, key in STAGE_SECTIONS.items():
            section = gathered[group].pop(key, None) if group in gathered else None
            if section is not None and not isinstance(section, DictConfig):
                raise ConfigError(f"{group}.{key} is {section!r}; give its stages by name, as conf/ does.")
            for name, node in section.items_ex(resolve=False) if section else ():
                if name in gathered.stages:
                    raise ConfigError(
                        f"{group}.{key}.{name!s}: another stage has this name already; give it another one."
                    )
                gathered.stages[name] = node
    return gathered


def register_resolvers() -> None:
    """`${stage:NAME}`: the artifact of a stage; `${process:}`: the number of the command's process; `${machine:}`: its
    machine, with the GPU that `accelerator` names; `${trained_here:PATHS}`: are all these paths artifacts?
    `${device_graph:BACKEND}`: the artifact of stage `device_graph` where a model runs from a graph, else null;
    `${hidden_scorers:}`: the policy's trained scorers that read hidden states, which what records or exports a draft
    model needs to know; `${data_file:NAME}`: a file below `data_root`, null without one; `${conf_file:NAME}`: a file
    below conf/; `${timed_as:PATH,NAME}`: the architecture of the user's checkpoint at PATH, else NAME;
    `${pruned_architecture:TARGET,LAYERS}`: TARGET with so many layers, as one value that another drafter's file
    replaces whole; `${expected_prompt_tokens:N}`, `${expected_answer_tokens:N}`: mean tokens that a simulation is told
    to draw, else N.
    """

    OmegaConf.register_new_resolver("stage", lambda name: {REFERENCE: name}, replace=True)
    OmegaConf.register_new_resolver("trained_here", lambda *paths: all(_is_stage(p) for p in paths), replace=True)
    OmegaConf.register_new_resolver("device_graph", _device_graph, replace=True)
    OmegaConf.register_new_resolver("hidden_scorers", _hidden_scorers, replace=True)
    OmegaConf.register_new_resolver("data_file", _data_file, replace=True)
    OmegaConf.register_new_resolver("timed_as", _timed_as, replace=True)
    OmegaConf.register_new_resolver("pruned_architecture", _pruned_architecture, replace=True)
    OmegaConf.register_new_resolver("open_half", _open_half, replace=True)
    OmegaConf.register_new_resolver("expected_prompt_tokens", _expected_prompt_tokens, replace=True)
    OmegaConf.register_new_resolver("expected_answer_tokens", _expected_answer_tokens, replace=True)
    OmegaConf.register_new_resolver("conf_file", lambda name: str(conf_dir() / name), replace=True)
    # A launcher's worker processes inherit it: all jobs of a sweep must resolve its folder alike.
    command = os.environ.setdefault("TANDEM_PROCESS", str(os.getpid()))
    OmegaConf.register_new_resolver("process", lambda: command, replace=True)
    OmegaConf.register_new_resolver("machine", _machine, replace=True)


def _machine(*, _root_: DictConfig) -> str:
    accelerator = str(OmegaConf.select(_root_, "accelerator"))
    return ", ".join(f"{key} {value}" for key, value in machine(accelerator).items())


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


def _expected_prompt_tokens(default: int, *, _root_: DictConfig) -> int:
    lengths = OmegaConf.select(_root_, "runtime.outcomes.prompt_lengths")
    return max(1, round(lengths.mean)) if lengths else default


def _expected_answer_tokens(default: int, *, _root_: DictConfig) -> int:
    most = int(_root_.workload.max_new_tokens)
    if OmegaConf.select(_root_, "runtime.outcomes.full_length_answers"):
        return most
    lengths = OmegaConf.select(_root_, "runtime.outcomes.answer_lengths")
    return min(most, max(1, round(lengths.mean)) if lengths else default)


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


def _is_stage(value: Any) -> bool:
    return isinstance(value, Mapping | DictConfig) and REFERENCE in value
