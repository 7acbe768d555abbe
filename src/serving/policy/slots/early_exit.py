"""Slot `early_exit`: skips layers of the draft model, and offloading for the tail of the sequence."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from serving.core.session import Session
from serving.messages import EarlyExitRule


class EarlyExit(Protocol):
    @property
    def layer_exit(self) -> EarlyExitRule | None:
        """When the draft model's forward pass stops before its last layer."""
        ...

    @property
    def has_sequence_exit(self) -> bool: ...

    def past_sequence_exit(self, session: Session) -> bool:
        """True if the answer is so near its end that nothing is offloaded any more."""
        ...


@dataclass(frozen=True)
class NoEarlyExit:
    """Every layer runs, and drafts may be offloaded until the end."""

    layer_exit: ClassVar[None] = None
    has_sequence_exit: ClassVar[bool] = False

    def past_sequence_exit(self, session: Session) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class SequencewiseExit:
    """No offloading after `sequence_fraction` of the longest answer (Synera, section 4.3, sequence-wise: 0.8)."""

    sequence_fraction: float
    layer_exit: ClassVar[None] = None
    has_sequence_exit: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.sequence_fraction <= 1.0:
            raise ValueError(
                f"policy.early_exit.sequence_fraction is {self.sequence_fraction}; it is a share of max_new_tokens: "
                "0 to 1"
            )

    def past_sequence_exit(self, session: Session) -> bool:
        return session.num_generated > self.sequence_fraction * session.request.max_new_tokens


@dataclass(frozen=True)
class LayerwiseExit:
    """The forward pass stops once top-1 and top-2 probability differ by `margin` (Synera, section 4.3, layer-wise).

    Args:
        margin: a token is read off above it; 0.7 in the paper. At 1 no token ever is, and every check is wasted.
        last_share: the share of the layers, at the end, in which it may stop; 0.25 in the paper.
        max_checks: checks before the last layer at most; None: one before each of these layers. Each check costs a pass
            through the LM head.
    """

    margin: float = 0.7
    last_share: float = 0.25
    max_checks: int | None = None
    has_sequence_exit: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.margin <= 1.0:
            raise ValueError(f"policy.early_exit.margin is {self.margin}; it is a difference of probabilities: 0 to 1")
        if not 0.0 < self.last_share < 1.0:
            raise ValueError(
                f"policy.early_exit.last_share is {self.last_share}; it is a share of the layers: above 0, below 1"
            )
        if self.max_checks is not None and self.max_checks < 1:
            raise ValueError(
                f"policy.early_exit.max_checks is {self.max_checks}; check after at least 1 layer, or null for all of "
                "them"
            )

    @property
    def layer_exit(self) -> EarlyExitRule:
        return EarlyExitRule("margin", self.margin, self.last_share, self.max_checks or 0)

    def past_sequence_exit(self, session: Session) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class ProgressiveExit(LayerwiseExit):
    """Both: layers are skipped, and the tail stays on the device (Synera, section 4.3)."""

    sequence_fraction: float = 0.8
    has_sequence_exit: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        SequencewiseExit(self.sequence_fraction)

    def past_sequence_exit(self, session: Session) -> bool:
        return session.num_generated > self.sequence_fraction * session.request.max_new_tokens
