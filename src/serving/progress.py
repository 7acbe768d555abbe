"""Reports of the progress of long work."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

Progress = Callable[[int, int, str], None]
"""Called as `progress(done, total, note)`; may raise KeyboardInterrupt, after which the work can be resumed."""


def silent(done: int, total: int, note: str) -> None:
    """Ignores progress."""


def reported(items: Sequence[T], progress: Progress) -> Iterator[T]:
    """The items; each is reported when the next one is asked for."""
    for done, item in enumerate(items, 1):
        yield item
        progress(done, len(items), "")
