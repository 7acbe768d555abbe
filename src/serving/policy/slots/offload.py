"""Slot `offload`: which drafts are sent to the target."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from serving.core.session import Session

OffloadScope = Literal["none", "some", "all", "full"]


class Offload(Protocol):
    @property
    def scope(self) -> OffloadScope:
        """Which drafts may be sent: none, some, all; full: no drafts, the target writes the whole answer."""
        ...

    @property
    def requested_scores(self) -> tuple[str, ...]:
        """Untrained scores that it reads. A trained one comes from its `scorer`, if it has one (`ScoredChoice`)."""
        ...

    def tokens_to_offload(self, session: Session) -> int:
        """Tokens that the target may write now: 0 keeps the draft, 1 verifies it, more let the target continue."""
        ...


@runtime_checkable
class OptionalOffload(Protocol):
    """An offload that a request may switch off."""

    def never_offloads(self, session: Session) -> bool:
        """True if it is known beforehand that nothing of this session is offloaded."""
        ...


@dataclass(frozen=True)
class AlwaysOffload:
    """Every draft is verified (SLED, WISP, HAT)."""

    scope: ClassVar[Literal["all"]] = "all"
    requested_scores: ClassVar[tuple[str, ...]] = ()

    def tokens_to_offload(self, session: Session) -> int:  # noqa: ARG002
        return 1


@dataclass(frozen=True)
class NeverOffload:
    """Nothing leaves the device (edge-centric)."""

    scope: ClassVar[Literal["none"]] = "none"
    requested_scores: ClassVar[tuple[str, ...]] = ()

    def tokens_to_offload(self, session: Session) -> int:  # noqa: ARG002
        return 0


@dataclass(frozen=True)
class FullOffload:
    """The target writes the whole answer (cloud-centric)."""

    scope: ClassVar[Literal["full"]] = "full"
    requested_scores: ClassVar[tuple[str, ...]] = ()

    def tokens_to_offload(self, session: Session) -> int:
        return session.remaining_tokens


@dataclass(frozen=True)
class RandomOffload:
    """Each draft with probability `budget`: the baseline of all selections."""

    budget: float
    scope: ClassVar[Literal["some"]] = "some"
    requested_scores: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_budget(self.budget)

    def tokens_to_offload(self, session: Session) -> int:
        return int(session.uniform("offload_random") < self.budget)


def check_budget(budget: float) -> None:
    """Raises ValueError unless 0 <= budget <= 1."""
    if not 0.0 <= budget <= 1.0:
        raise ValueError(f"policy.offload.budget is {budget}; it is a share of draft chunks: 0 to 1")
