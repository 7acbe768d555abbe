"""Slot `waiting`: what the device does while the cloud verifies."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from serving.nodes.session import Session


class Waiting(Protocol):
    @property
    def probes(self) -> tuple[str, ...]: ...

    @property
    def steps(self) -> int:
        """How many tokens to draft ahead on each guess; 0: idle."""
        ...

    def guesses(self, s: Session) -> tuple[tuple[int, int | None], ...]:
        """Verdicts worth preparing for: (drafts accepted, the token that follows or None for the drafter's own)."""
        ...


@dataclass(frozen=True)
class Idle:
    """The device waits."""

    steps: ClassVar[int] = 0
    probes: ClassVar[tuple[str, ...]] = ()

    def guesses(self, s: Session) -> tuple[tuple[int, int | None], ...]:  # noqa: ARG002
        return ()
