"""Checks the policies of the page against the command line's: their artifacts must be the same.

Artifacts of slots are described once, in `policy.artifacts`, and may read the options of `policy`. A policy elsewhere
(`page.policies.NAME`) that needs such an artifact must have the same options; and since the slots that are composed
last describe it last, their description must equal the one without them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipeline.errors import ConfigError

_STAGE_REFERENCE = re.compile(r"\$\{stage:(\w+)\}")
_PAGE_OVERRIDE = re.compile(r"[+~]*(page$|page[.@]|[^@]*@page\b)")
_POLICY_OPTION = re.compile(r"\$\{[^}]*?\bpolicy\.([\w.]+)")


def without_page_policies(overrides: Sequence[str]) -> list[str]:
    """The words of a command line without those for the page; words for artifacts may add keys, since the page's
    policies may have brought the artifact.
    """
    words = [word for word in overrides if not _PAGE_OVERRIDE.match(word.partition("=")[0])]
    return [f"++{word}" if word.startswith("policy.artifacts.") else word for word in words]


def check(cfg: DictConfig, base: DictConfig) -> None:
    """Raises ConfigError that names the policy, the artifact and the differing option.

    Args:
        base: the configuration that the same command line composes without the page's policies.
    """
    beside = OmegaConf.select(cfg, "page.policies") or {}
    artifacts = _unresolved(cfg.policy.get("artifacts") or {})
    if changed := _first_difference(_unresolved(cfg), _unresolved(base)):
        names = ", ".join(_policies_needing(beside, changed, artifacts))
        raise ConfigError(
            f"{names} would change {changed} for the command line's policy, too; choose other policies beside it, "
            "page=default or page=none"
        )
    for name in beside:
        for stage in _needed_artifacts(_unresolved(beside[name]), artifacts):
            for option in _POLICY_OPTION.findall(str(artifacts[stage])):
                if _value(cfg, f"policy.{option}") != _value(cfg, f"page.policies.{name}.{option}"):
                    raise ConfigError(
                        f"page.policies.{name} needs the artifact {stage}, which is made for the {option} of the "
                        f"command line's policy; give {name} as +policy={name}, and the other one beside it"
                    )


def _first_difference(cfg: Mapping[str, Any], base: Mapping[str, Any]) -> str | None:
    """The first differing artifact, option of the policy or section; additional artifacts do not count."""
    there, here = _sections(cfg), _sections(base)
    return next((path for path, part in here.items() if part != there.get(path)), None)


def _sections(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The parts by name. An artifact without a target is only an override of a missing one, and left out."""
    policy = cfg["policy"]
    artifacts = policy.get("artifacts") or {}
    return {
        **{f"policy.artifacts.{name}": part for name, part in artifacts.items() if part and "_target_" in part},
        **{f"policy.{name}": part for name, part in policy.items() if name != "artifacts"},
        **{name: part for name, part in cfg.items() if name not in ("policy", "page")},
    }


def _policies_needing(variants: Mapping[str, Any], changed: str, artifacts: Mapping[str, Any]) -> list[str]:
    """The policies that need the changed artifact; all if the change is of another part."""
    stage = changed.removeprefix("policy.artifacts.")
    needing = [name for name in variants if stage in _needed_artifacts(_unresolved(variants[name]), artifacts)]
    return [f"page.policies.{name}" for name in needing or variants]


def _needed_artifacts(node: Any, artifacts: Mapping[str, Any]) -> Iterator[str]:
    """The artifacts that a node refers to, and their inputs."""
    waiting, found = _STAGE_REFERENCE.findall(str(node)), set[str]()
    while waiting:
        stage = waiting.pop()
        if stage in artifacts and stage not in found:
            found.add(stage)
            waiting += _STAGE_REFERENCE.findall(str(artifacts[stage]))
            yield stage


def _unresolved(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node


def _value(cfg: DictConfig, path: str) -> Any:
    found = OmegaConf.select(cfg, path)
    return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found
