"""Slot `early_exit`: layers of the drafter, and the tail of the sequence, that are skipped."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from serving.core.session import Session
from serving.messages import Exit


class EarlyExit(Protocol):
    @property
    def layer(self) -> Exit | None:
        """When the drafter's forward stops before its last layer."""
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


@dataclass(frozen=True)
class Layers:
    """The forward stops once top-1 and top-2 probability lie `margin` apart (Synera, section 4.3, layer-wise).

    Args:
        margin: above it a token is read off; 0.7 in the paper. From 1 on no token ever is, and every check is in vain.
        last: the share of the layers, the last ones, in which it may stop; 0.25 in the paper.
        checks: how often the head is asked before the last layer; null: before each of these layers, the first time at
            1 - `last` of all. Each check costs a pass through the head.
    """

    margin: float = 0.7
    last: float = 0.25
    checks: int | None = None
    has_tail: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.margin <= 1.0:
            raise ValueError(f"policy.early_exit.margin is {self.margin}; it is a difference of probabilities: 0 to 1")
        if not 0.0 < self.last < 1.0:
            raise ValueError(f"policy.early_exit.last is {self.last}; it is a share of the layers: above 0, below 1")
        if self.checks is not None and self.checks < 1:
            raise ValueError(
                f"policy.early_exit.checks is {self.checks}; check after at least 1 layer, or null for all of them"
            )

    @property
    def layer(self) -> Exit:
        return Exit("margin", self.margin, self.last, self.checks or 0)

    def tail(self, s: Session) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class Progressive(Layers):
    """Both: layers are skipped, and the tail stays on the device (Synera, section 4.3)."""

    after: float = 0.8
    has_tail: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        Tail(self.after)

    def tail(self, s: Session) -> bool:
        return s.written > self.after * s.call.limit
