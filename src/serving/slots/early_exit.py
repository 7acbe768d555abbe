"""Slot `early_exit`: layers of the drafter, and the tail of the sequence, that are skipped."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from serving.nodes.session import Session


class EarlyExit(Protocol):
    @property
    def layer(self) -> tuple[str, float] | None:
        """(score, threshold) at which the drafter's forward stops before its last layer."""
        ...

    @property
    def has_tail(self) -> bool: ...

    def tail(self, s: Session) -> bool:
        """Is the sequence so near its end that nothing is offloaded any more?"""
        ...


@dataclass(frozen=True)
class NoExit:
    """Every layer runs, and drafts may be sent until the end."""

    layer: ClassVar[None] = None
    has_tail: ClassVar[bool] = False

    def tail(self, s: Session) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class Tail:
    """No offloading after `after` of the longest answer (Synera, section 4.3, sequence-wise: 0.8)."""

    after: float
    layer: ClassVar[None] = None
    has_tail: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.after <= 1.0:
            raise ValueError(f"policy.early_exit.after is {self.after}; it is a share of max_new_tokens: 0 to 1")

    def tail(self, s: Session) -> bool:
        return s.written > self.after * s.call.limit
