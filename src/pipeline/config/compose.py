"""A composed configuration as plain data: what describes stages gathered in one place, every reference replaced by its
value.
"""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from pipeline.artifacts.stage import REFERENCE
from pipeline.errors import ConfigError

STAGE_SECTIONS = {"model": "stages", "hardware": "stages", "policy": "artifacts", "runtime": "stages"}
"""Where groups describe stages of their own: what trains a pair, measures a chip, profiles what a policy needs, records
what a simulation looks up."""

HOISTED_SECTIONS = {"workload": "profiling"}
"""What a group says for others, and no part of what it configures."""


def register_resolvers() -> None:
    """`${stage:NAME}`: the artifact of a stage; `${process:}`: this process's number; `${machine:}`: its machine;
    `${trained_here:PATHS}`: are all these paths artifacts? `${device_graph:BACKEND}`: the artifact of stage `device_graph`
    where a model runs from a graph, else null.
    """
    import os

    from pipeline.artifacts.environment import machine

    def facts() -> str:
        return ", ".join(f"{key} {value}" for key, value in machine().items())

    OmegaConf.register_new_resolver("stage", lambda name: {REFERENCE: name}, replace=True)
    OmegaConf.register_new_resolver("trained_here", lambda *paths: all(_is_stage(p) for p in paths), replace=True)
    OmegaConf.register_new_resolver("device_graph", _device_graph, replace=True)
    OmegaConf.register_new_resolver("process", os.getpid, replace=True)
    OmegaConf.register_new_resolver("machine", facts, replace=True)


def _device_graph(backend: str) -> dict[str, str] | None:
    return {REFERENCE: "device_graph"} if backend == "onnx" else None


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
    return {str(key): value for key, value in data.items()}


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
        for group, key in HOISTED_SECTIONS.items():
            cfg[key] = _pop(cfg, group, key)
    return cfg


def _pop(cfg: DictConfig, group: str, key: str) -> dict[Any, Any]:
    node = cfg[group].pop(key, None) if group in cfg else None
    plain = OmegaConf.to_container(node, resolve=False) if node is not None else {}
    assert isinstance(plain, dict)
    return plain
