"""How a stage differs from one that was built before, in words."""

from collections.abc import Iterator
from typing import Any

from pipeline.artifacts.fingerprint import canonical
from pipeline.artifacts.manifest import Manifest
from pipeline.artifacts.stage import CONTENT, REFERENCE, Stage

_SHOWN = 6
_WIDTH = 40


def changes(before: Manifest, stage: Stage) -> str:
    """Changed keys as `steps 500 -> 400, its input corpus changed`; at most six, and how many more there are."""
    found = list(_all(before, stage)) or ["the way in which identities are computed"]
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return ", ".join(found[:_SHOWN] + more)


def _all(before: Manifest, stage: Stage) -> Iterator[str]:
    if before.target != stage.target:
        yield f"target {before.target} -> {stage.target}"
    if before.version != stage.version:
        yield f"version {before.version} -> {stage.version}"
    yield from _between(before.args, stage.identity, "")
    for name, needed in stage.inputs.items():
        if before.inputs.get(name, needed.digest) != needed.digest:
            yield f"its input {name} changed"


def _between(old: Any, new: Any, place: str) -> Iterator[str]:
    if canonical(old) == canonical(new):  # not `==`, to which 1 and 1.0 are equal
        return
    if _is_content(old) and _is_content(new) and old[CONTENT] != new[CONTENT]:
        yield f"the content of {place} changed"
    elif _is_tree(old) and _is_tree(new):
        yield from _between_trees(old, new, place)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (was, now) in enumerate(zip(old, new, strict=True)):
            yield from _between(was, now, f"{place}[{index}]")
    else:
        yield f"{place} {_short(old)} -> {_short(new)}"


def _between_trees(old: dict[str, Any], new: dict[str, Any], place: str) -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        here = f"{place}.{key}".lstrip(".")
        if key not in old:
            yield f"{here} added ({_short(new[key])})"
        elif key not in new:
            yield f"{here} removed (was {_short(old[key])})"
        else:
            yield from _between(old[key], new[key], here)


def _is_content(node: Any) -> bool:
    return isinstance(node, dict) and CONTENT in node


def _is_tree(node: Any) -> bool:
    return isinstance(node, dict) and REFERENCE not in node and CONTENT not in node


def _short(node: Any) -> str:
    if isinstance(node, dict) and REFERENCE in node:
        return f"stage {node[REFERENCE]}"
    if isinstance(node, dict) and CONTENT in node:
        return f"content {str(node[CONTENT])[:12]}"
    text = canonical(node)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
