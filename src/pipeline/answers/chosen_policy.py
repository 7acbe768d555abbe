"""Writes a chosen candidate as a policy file, which `+policy=NAME` runs: OUTPUTS/chosen/policy/NAME.yaml."""

import re
from pathlib import Path
from typing import Any

import yaml

from pipeline.answers.candidates import Candidate
from pipeline.artifacts import fingerprint
from pipeline.config.arguments import chosen_folder
from pipeline.errors import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9_]*")
SLOT = "policy/"
OPTION = "policy."


def check_name(name: str) -> None:
    """Raises ConfigError for a name that no policy file can have."""
    from pipeline.config.arguments import conf_dir

    if not _NAME.fullmatch(name):
        raise ConfigError(f"choose.name is {name!r}; use a-z, 0-9 and _, and begin with a letter.")
    if (conf_dir() / "policy" / f"{name}.yaml").is_file():
        raise ConfigError(f"choose.name is {name!r}, which is a policy of the project; choose another name.")


def policy_text(name: str, candidate: Candidate, comments: list[str]) -> str:
    """The file of a policy that is `candidate` under the name `name`; its first line says what it is for.

    Raises ConfigError for a value that is no option of the policy.
    """
    values = [(key.lstrip("+"), value) for key, value in candidate.values]
    slots = {key.removeprefix(SLOT): value for key, value in values if key.startswith(SLOT)}
    options = {key: value for key, value in values if key.startswith(OPTION)}
    other = [key for key, _ in values if not key.startswith((SLOT, OPTION))]
    if other:
        raise ConfigError(f"{other[0]} is no option of a policy, and a policy file cannot keep it.")
    lines = [f"# {comment}" for comment in comments]
    lines += ["defaults:", f"  - {candidate.policy}"]
    lines += [f"  - override {slot}: {choice}" for slot, choice in slots.items()]
    lines += ["  - _self_", f"name: {name}"]
    tree: dict[str, Any] = {}
    for key, value in options.items():
        _place(tree, key.removeprefix(OPTION).split("."), yaml.safe_load(value))
    return "\n".join(lines) + "\n" + (yaml.safe_dump(tree, sort_keys=False) if tree else "")


def _place(tree: dict[str, Any], path: list[str], value: Any) -> None:
    node = tree
    for key in path[:-1]:
        node = node.setdefault(key, {})
    node[path[-1]] = value


def write_policy(outputs: Path, name: str, text: str) -> Path:
    """The written file."""
    path = chosen_folder(outputs) / "policy" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    fingerprint.write_atomic(path, text)
    return path
