"""Policies beside the one of the command line: is what they need made for them?

Artifacts that slots bring are described once, in `policy.artifacts`, and may read the options of `policy`. A policy
elsewhere in the configuration (`page.policies.NAME`) that needs such an artifact must have the same options there.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipeline.errors import ConfigError

_STAGE = re.compile(r"\$\{stage:(\w+)\}")
_READ = re.compile(r"\$\{[^}]*?\bpolicy\.([\w.]+)")


def check(cfg: DictConfig) -> None:
    """Raises ConfigError that names the policy, the artifact and the option that differs."""
    beside = OmegaConf.select(cfg, "page.policies") or {}
    artifacts = _raw(cfg.policy.get("artifacts") or {})
    for name in beside:
        for stage in _needed(_raw(beside[name]), artifacts):
            for option in _READ.findall(str(artifacts[stage])):
                if _value(cfg, f"policy.{option}") != _value(cfg, f"page.policies.{name}.{option}"):
                    raise ConfigError(
                        f"page.policies.{name} needs the artifact {stage}, which is made for the {option} of the "
                        f"command line's policy; give {name} as +policy={name}, and the other one beside it"
                    )


def _needed(node: Any, artifacts: Mapping[str, Any]) -> Iterator[str]:
    """Artifacts that a node refers to, and those that these are made from."""
    waiting, found = _STAGE.findall(str(node)), set[str]()
    while waiting:
        stage = waiting.pop()
        if stage in artifacts and stage not in found:
            found.add(stage)
            waiting += _STAGE.findall(str(artifacts[stage]))
            yield stage


def _raw(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node


def _value(cfg: DictConfig, path: str) -> Any:
    found = OmegaConf.select(cfg, path)
    return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found
