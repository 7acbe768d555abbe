"""A stage is data: function, arguments and inputs. The runner decides when it runs, the store where it is kept.

canonical JSON of (name, target, version, args, code if there is any) --sha256--> digest
    {"_stage_": "corpus"}             in args stands for that input's digest
    {"_content_": sha, "path": ...}   in args stands for the content; where it lies is not identity
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pipeline.artifacts.fingerprint import canonical_json

REFERENCE = "_stage_"
CONTENT = "_content_"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Stage:
    """One step of the plan, identified by what it would compute.

    `args` is canonical plain data; every `{"_stage_": name}` in it has its stage in `inputs` under that name, and the
    reverse. `version` is raised when the target's code changes its meaning. `resources` says where it runs and is
    outside identity. `code` is the sha256 of each module of a user's own that `target` and `args` name. `unread` names
    inputs that belong to the identity and are not read, so that they need not be built. Raises TypeError for data
    without a canonical form, ValueError for the rest.
    """

    name: str
    target: str
    args: Mapping[str, Any]
    version: int = 1
    inputs: Mapping[str, "Stage"] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"stage name {self.name!r} must be letters, digits, '_', '-' and '.', a letter first.")
        canonical_json(dict(self.args), f"{self.name}.args")
        self._check_inputs(set(_references(dict(self.args))))

    def _check_inputs(self, referenced: set[str]) -> None:
        for name in sorted(referenced ^ set(self.inputs)):
            problem = "refers to" if name in referenced else "does not refer to"
            raise ValueError(
                f"stage {self.name!r} {problem} {name!r} in its args, but its inputs are {sorted(self.inputs)}; "
                f"each input belongs into args once as {{{REFERENCE}: name}}, since only args are identity."
            )
        for name, stage in self.inputs.items():
            if name != stage.name:
                raise ValueError(f"stage {self.name!r} calls its input {stage.name!r} by another name, {name!r}.")

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The args that count: inputs by name, contents without their path."""
        kept: dict[str, Any] = _replace_references(dict(self.args), lambda name: name)
        return kept

    @cached_property
    def digest(self) -> str:
        """sha256 in hex, equal in every process and for every store."""
        args = _replace_references(self.identity, lambda name: self.inputs[name].digest)
        whole = {"name": self.name, "target": self.target, "version": self.version, "args": args}
        if self.code:
            whole["code"] = dict(self.code)
        return hashlib.sha256(canonical_json(whole, self.name).encode()).hexdigest()

    @property
    def key(self) -> str:
        """Name and start of the digest: short, and unique in practice."""
        return f"{self.name}-{self.digest[:12]}"

    @property
    def read_inputs(self) -> dict[str, "Stage"]:
        """The inputs by name, without those that are not read."""
        return {name: stage for name, stage in self.inputs.items() if name not in self.unread}

    @cached_property
    def ancestors(self) -> dict[str, "Stage"]:
        """All direct and indirect inputs that are read, by digest, inputs first."""
        found: dict[str, Stage] = {}
        for stage in self.read_inputs.values():
            found |= stage.ancestors | {stage.digest: stage}
        return found


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _references(item)
    elif isinstance(node, dict) and REFERENCE in node:
        if len(node) > 1 or not isinstance(node[REFERENCE], str):
            raise ValueError(f"a reference is {{{REFERENCE}: name}} and nothing else, not {node!r:.80}.")
        yield node[REFERENCE]
    elif isinstance(node, dict):
        for item in node.values():
            yield from _references(item)


def _replace_references(node: Any, replacement: Callable[[str], str]) -> Any:
    if isinstance(node, list):
        return [_replace_references(item, replacement) for item in node]
    if not isinstance(node, dict):
        return node
    if REFERENCE in node:
        return {REFERENCE: replacement(node[REFERENCE])}
    return {
        key: _replace_references(item, replacement)
        for key, item in node.items()
        if not (key == "path" and CONTENT in node)
    }
