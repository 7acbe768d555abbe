"""What a server got wrong, or did not get to say.

What a server said, as an error or a log may tell it: short, printable, and without the key.
"""

from typing import Any

from serving.hardware.executor import TransientWorkError


class RemoteError(TransientWorkError):
    """A question that a server did not answer, with whose fault it is, what was got and what to do.

    `transient` says that the same question may be answered later: the server was not reached, too slow, or overloaded.
    `status` is that of an answer which will not get better.
    """

    def __init__(self, message: str, transient: bool = False, status: int | None = None) -> None:
        super().__init__(message)
        self.transient, self.status = transient, status

    @property
    def not_found(self) -> bool:
        """Has the server no such URL?"""
        return self.status in (404, 405, 501)

    @property
    def unauthorized(self) -> bool:
        """Is it the key, and so every question?"""
        return self.status in (401, 403)

    @property
    def rejected(self) -> bool:
        """Does the server say that it is the question's fault?"""
        return self.status is not None and self.status < 500


MAX_SHOWN_CHARS = 80
_SECRETS: set[str] = set()
"""Of all clients of this process; some servers repeat what they were sent."""


def register_secret(secret: str) -> None:
    """From here on it is shown nowhere."""
    _SECRETS.add(secret)


def redact(text: str) -> str:
    """Without keys. Before it is cut: half a key is one that no search finds."""
    for key in sorted(_SECRETS, key=len, reverse=True):
        text = text.replace(key, "***")
    return text


def one_line(text: str, max_chars: int = MAX_SHOWN_CHARS) -> str:
    """On one line, for a place where no quotes are."""
    line = " ".join("".join(c if c.isprintable() else " " for c in redact(text)).split())
    return line if len(line) <= max_chars else f"{line[:max_chars]}..."


def short_repr(value: Any, max_chars: int = MAX_SHOWN_CHARS) -> str:
    """As Python writes it; of what is neither text nor number only the kind."""
    if isinstance(value, str):
        text = redact(value)
        told = repr(text[:max_chars])
        return told if len(text) <= max_chars and len(told) <= max_chars + 2 else f"{told[: max_chars + 1]}..."
    if value is None or isinstance(value, bool | int | float):
        return one_line(repr(value), max_chars)
    return type_name(value)


def type_name(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
