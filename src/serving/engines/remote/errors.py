"""What a server got wrong, or did not get to say.

What a server said, as an error or a log may tell it: short, printable, and without the key.
"""

from typing import Any

from serving.hardware.executor import OutageError


class RemoteError(OutageError):
    """A question that a server did not answer, with whose fault it is, what was got and what to do.

    `passing` says that the same question may be answered later: the server was not reached, too slow, or overloaded.
    `status` is that of an answer which will not get better.
    """

    def __init__(self, message: str, passing: bool = False, status: int | None = None) -> None:
        super().__init__(message)
        self.passing, self.status = passing, status

    @property
    def missing(self) -> bool:
        """Has the server no such URL?"""
        return self.status in (404, 405, 501)

    @property
    def barred(self) -> bool:
        """Is it the key, and so every question?"""
        return self.status in (401, 403)

    @property
    def refused(self) -> bool:
        """Does the server say that it is the question's fault?"""
        return self.status is not None and self.status < 500


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
