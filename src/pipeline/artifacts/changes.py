"""Describes how a stage differs from one that was built before."""

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from pipeline.artifacts.fingerprint import canonical_json
from pipeline.artifacts.manifest import Manifest
from pipeline.artifacts.stage import CONTENT, REFERENCE, Stage

TARGET, NAME = "_target_", "name"
_MAX_SHOWN = 6
_MAX_VALUE_CHARS = 40


def nearest(stage: Stage, candidates: Sequence[Manifest]) -> Manifest | None:
    """The candidate with the fewest changed keys; of several the first. None without candidates."""
    found, fewest = None, sys.maxsize
    for one in candidates:
        changed = sum(1 for _ in islice(_stage_changes(one, stage, in_words=False), fewest))
        if changed < fewest:
            found, fewest = one, changed
    return found


def describe_changes(before: Manifest, stage: Stage) -> str:
    """Changes as `policy sled instead of synera, steps 500 -> 400, its input corpus changed`; at most six, and how many
    more there are.
    """
    found = list(map(str, _stage_changes(before, stage, in_words=True)))
    more = [f"and {len(found) - _MAX_SHOWN} more"] if len(found) > _MAX_SHOWN else []
    return ", ".join(found[:_MAX_SHOWN] + more) or "the way in which identities are computed"


class _Change(NamedTuple):
    """A changed key; its values are formatted when it is printed, since most changes are only counted."""

    text: str
    values: tuple[Any, ...] = ()
    end: str = ""

    def __str__(self) -> str:
        return self.text + " -> ".join(map(_format_value, self.values)) + self.end


def _stage_changes(before: Manifest, stage: Stage, in_words: bool) -> Iterator[_Change]:
    """`in_words`: a node of another name or class is one change, not one for each of its keys."""
    if before.target != stage.target:
        yield _Change(f"target {before.target} -> {stage.target}")
    if before.version != stage.version:
        yield _Change(f"version {before.version} -> {stage.version}")
    yield from _value_changes(before.args, stage.identity, "", in_words)
    yield from (_Change(f"your own code in {name}") for name in stage.code if before.code.get(name) != stage.code[name])
    for name, needed in stage.inputs.items():
        if before.inputs.get(name, needed.digest) != needed.digest:
            yield _Change(f"its input {name} changed")


def _value_changes(old: Any, new: Any, path: str, in_words: bool) -> Iterator[_Change]:
    if not in_words and old == new:  # for a count it does not matter that 1 == 1.0
        return
    if _is_mapping(old) and _is_mapping(new):
        yield from _mapping_changes(old, new, path, in_words)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (was, now) in enumerate(zip(old, new, strict=True)):
            yield from _value_changes(was, now, f"{path}[{index}]", in_words)
    elif _is_same(old, new):
        return
    elif _is_content(old) and _is_content(new) and old[CONTENT] != new[CONTENT]:
        yield _Change(f"the content of {path} changed")
    else:
        yield _Change(f"{path} ", (old, new))


def _mapping_changes(old: dict[str, Any], new: dict[str, Any], path: str, in_words: bool) -> Iterator[_Change]:
    if in_words and path and (replaced := _replacement(old, new)):
        yield _Change(f"{path} {replaced}")
        return
    for key in sorted(old.keys() | new.keys()):
        here = f"{path}.{key}".lstrip(".")
        if key not in old:
            yield _Change(f"{here} added (", (new[key],), ")")
        elif key not in new:
            yield _Change(f"{here} removed (was ", (old[key],), ")")
        else:
            yield from _value_changes(old[key], new[key], here, in_words)


def _is_same(old: Any, new: Any) -> bool:
    """True if both have one canonical text; `==` is true of 1 and 1.0 too."""
    if isinstance(old, dict | list):
        return canonical_json(old) == canonical_json(new)
    return type(old) is type(new) and bool(old == new)


def _replacement(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """`sled instead of synera` for nodes of different names or classes; None where both are the same."""
    for key in (NAME, TARGET):
        was, now = old.get(key), new.get(key)
        if isinstance(was, str) and isinstance(now, str) and was != now:
            return f"{now.rpartition('.')[2]} instead of {was.rpartition('.')[2]}"
    return None


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
