"""How a stage differs from one that was built before, in words."""

from collections.abc import Iterator
from typing import Any

from pipeline.artifacts.fingerprint import canonical_json
from pipeline.artifacts.manifest import Manifest
from pipeline.artifacts.stage import CONTENT, REFERENCE, Stage

_MAX_SHOWN = 6
_MAX_VALUE_CHARS = 40


def describe_changes(before: Manifest, stage: Stage) -> str:
    """Changed keys as `steps 500 -> 400, its input corpus changed`; at most six, and how many more there are."""
    found = list(_stage_changes(before, stage)) or ["the way in which identities are computed"]
    more = [f"and {len(found) - _MAX_SHOWN} more"] if len(found) > _MAX_SHOWN else []
    return ", ".join(found[:_MAX_SHOWN] + more)


def _stage_changes(before: Manifest, stage: Stage) -> Iterator[str]:
    if before.target != stage.target:
        yield f"target {before.target} -> {stage.target}"
    if before.version != stage.version:
        yield f"version {before.version} -> {stage.version}"
    yield from _value_changes(before.args, stage.identity, "")
    for name, needed in stage.inputs.items():
        if before.inputs.get(name, needed.digest) != needed.digest:
            yield f"its input {name} changed"


def _value_changes(old: Any, new: Any, path: str) -> Iterator[str]:
    if canonical_json(old) == canonical_json(new):  # not `==`, to which 1 and 1.0 are equal
        return
    if _is_content(old) and _is_content(new) and old[CONTENT] != new[CONTENT]:
        yield f"the content of {path} changed"
    elif _is_mapping(old) and _is_mapping(new):
        yield from _mapping_changes(old, new, path)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (was, now) in enumerate(zip(old, new, strict=True)):
            yield from _value_changes(was, now, f"{path}[{index}]")
    else:
        yield f"{path} {_format_value(old)} -> {_format_value(new)}"


def _mapping_changes(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        here = f"{path}.{key}".lstrip(".")
        if key not in old:
            yield f"{here} added ({_format_value(new[key])})"
        elif key not in new:
            yield f"{here} removed (was {_format_value(old[key])})"
        else:
            yield from _value_changes(old[key], new[key], here)


def _is_content(node: Any) -> bool:
    return isinstance(node, dict) and CONTENT in node


def _is_mapping(node: Any) -> bool:
    return isinstance(node, dict) and REFERENCE not in node and CONTENT not in node


def _format_value(node: Any) -> str:
    if isinstance(node, dict) and REFERENCE in node:
        return f"stage {node[REFERENCE]}"
    if isinstance(node, dict) and CONTENT in node:
        return f"content {str(node[CONTENT])[:12]}"
    text = canonical_json(node)
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 1] + "…"
