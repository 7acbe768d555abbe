"""Reports of the progress of long work."""

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Called as `progress(done, total, note)`; may raise KeyboardInterrupt, after which the work can be resumed."""


def silent(done: int, total: int, note: str) -> None:
    """Ignores progress."""
