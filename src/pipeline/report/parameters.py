"""Configuration as MLflow takes it: flat, within its limits, and with secrets masked."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

KEY_CHARS = 250
VALUE_CHARS = 6000
MASK = "***"

_SECRET = re.compile(
    r"(^|[^a-z])(api|auth|private|access)?(key|token|password|passwd|secret|credentials?|bearer)([^a-z]|$)"
)
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_FORBIDDEN = re.compile(r"[^\w\-. :/]")


def masked(node: Any, key: str = "") -> Any:
    """The same plain data, with values whose key looks like a secret, and logins in addresses, replaced by `***`."""
    if node is not None and not isinstance(node, bool) and _SECRET.search(key.lower()):
        return MASK
    if isinstance(node, Mapping):
        return {str(name): masked(value, str(name)) for name, value in node.items()}
    if isinstance(node, list | tuple):
        return [masked(value) for value in node]
    return _LOGIN.sub(MASK, node) if isinstance(node, str) else node


def masked_override(override: str) -> str:
    """`key=value` with the value masked as `masked` does."""
    key, equals, value = override.partition("=")
    return f"{key}{equals}{masked(value, key.rpartition('.')[2])}" if equals else override


def flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Masked leaves by dotted key; lists of plain values stay whole, and what is too long for MLflow is cut."""
    return dict(_leaves(masked(config), ""))


def _leaves(node: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _leaves(value, f"{place}.{key}".lstrip("."))
    elif isinstance(node, list) and any(isinstance(item, dict | list) for item in node):
        for index, item in enumerate(node):
            yield from _leaves(item, f"{place}.{index}")
    else:
        text = node if isinstance(node, str) else json.dumps(node, ensure_ascii=False, default=str)
        yield _FORBIDDEN.sub("_", place)[:KEY_CHARS], _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_CHARS else text[: VALUE_CHARS - 1] + "…"
