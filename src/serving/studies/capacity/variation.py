"""The same experiment with other figures, named by their paths."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")


def varied(node: T, changes: Mapping[str, Any]) -> T:
    """`node`, a dataclass, with each dotted path's value replaced; every class checks its new values.

    Raises LookupError for a path that leads nowhere, naming how far it went.
    """
    for path, value in changes.items():
        node = _replaced(node, path.split("."), value, path)
    return node


def leads(node: object, path: str) -> bool:
    """Does a path lead to a figure of this dataclass?"""
    for name in path.split("."):
        if not _has(node, name):
            return False
        node = getattr(node, name)
    return True


def _replaced(node: T, names: list[str], value: Any, path: str) -> T:
    first, *rest = names
    if not _has(node, first):
        known = ", ".join(each.name for each in fields(node)) if is_dataclass(node) else "nothing below"
        raise LookupError(f"there is no {path!r}: {type(node).__name__} has no {first!r}, it has {known}")
    inner = _replaced(getattr(node, first), rest, value, path) if rest else value
    return replace(node, **{first: inner})  # type: ignore[type-var]


def _has(node: object, name: str) -> bool:
    return is_dataclass(node) and any(each.name == name for each in fields(node))
