"""What runs work: models here, models whose time is another chip's, or a trace."""

from typing import Protocol

from serving.messages import Outcome, Work


class TransientWorkError(RuntimeError):
    """Work that failed for a reason outside this program: its node hears `WorkFailed`, and everything else goes on."""


class FatalWorkError(RuntimeError):
    """Work failed, and all later work will: the process ends, so that others see its nodes lost."""


class Executor(Protocol):
    def execute(self, work: Work) -> tuple[Outcome, float]:
        """The outcome, and the seconds that the chip is busy with it. Raises OutageError, BrokenError."""
        ...

    def drop(self, session: str, first: int | None) -> None:
        """Frees a session's cache: of the span that begins at layer `first`, or the drafter's (None)."""
        ...
