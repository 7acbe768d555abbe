"""Errors of a server, and text of a server made safe for errors and logs: short, printable, without the key."""

from typing import Any

from serving.hardware.executor import TransientWorkError


class RemoteError(TransientWorkError):
    """A request failed; the message says what was received and what to do.

    `transient`: True if a later retry may succeed (the server was not reached, too slow, or overloaded). `status` is
    the HTTP status of a permanent failure.
    """

    def __init__(self, message: str, transient: bool = False, status: int | None = None) -> None:
        super().__init__(message)
        self.transient, self.status = transient, status

    @property
    def not_found(self) -> bool:
        """True if the server has no such URL."""
        return self.status in (404, 405, 501)

    @property
    def unauthorized(self) -> bool:
        """True if the key was rejected, which fails every request."""
        return self.status in (401, 403)

    @property
    def rejected(self) -> bool:
        """True if the server rejected this request."""
        return self.status is not None and self.status < 500


MAX_SHOWN_CHARS = 80
_SECRETS: set[str] = set()
"""Keys of all clients of this process; some servers repeat what they were sent."""


def register_secret(secret: str) -> None:
    """From now on, `redact` hides this key."""
    _SECRETS.add(secret)


def redact(text: str) -> str:
    """Replaces keys. Call it before truncation, which could leave half a key."""
    for key in sorted(_SECRETS, key=len, reverse=True):
        text = text.replace(key, "***")
    return text


def one_line(text: str, max_chars: int = MAX_SHOWN_CHARS) -> str:
    """Redacted text on one line, truncated."""
    line = " ".join("".join(c if c.isprintable() else " " for c in redact(text)).split())
    return line if len(line) <= max_chars else f"{line[:max_chars]}..."


def short_repr(value: Any, max_chars: int = MAX_SHOWN_CHARS) -> str:
    """A redacted, truncated repr; for anything but text and numbers only the type."""
    if isinstance(value, str):
        text = redact(value)
        shown = repr(text[:max_chars])
        return shown if len(text) <= max_chars and len(shown) <= max_chars + 2 else f"{shown[: max_chars + 1]}..."
    if value is None or isinstance(value, bool | int | float):
        return one_line(repr(value), max_chars)
    return type_name(value)


def type_name(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
