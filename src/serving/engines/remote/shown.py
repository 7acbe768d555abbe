"""What a server said, as an error or a log may tell it: short, printable, and without the key."""

from typing import Any

MOST = 80
_KEYS: set[str] = set()
"""Of all clients of this process; some servers repeat what they were sent."""


def keep_secret(key: str) -> None:
    """From here on it is shown nowhere."""
    _KEYS.add(key)


def hidden(text: str) -> str:
    """Without keys. Before it is cut: half a key is one that no search finds."""
    for key in sorted(_KEYS, key=len, reverse=True):
        text = text.replace(key, "***")
    return text


def plain(text: str, most: int = MOST) -> str:
    """On one line, for a place where no quotes are."""
    line = " ".join("".join(c if c.isprintable() else " " for c in hidden(text)).split())
    return line if len(line) <= most else f"{line[:most]}..."


def shown(value: Any, most: int = MOST) -> str:
    """As Python writes it; of what is neither text nor number only the kind."""
    if isinstance(value, str):
        text = hidden(value)
        told = repr(text[:most])
        return told if len(text) <= most and len(told) <= most + 2 else f"{told[: most + 1]}..."
    if value is None or isinstance(value, bool | int | float):
        return plain(repr(value), most)
    return kind(value)


def kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
