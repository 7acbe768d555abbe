"""Slot `offload`: which drafts are sent."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from serving.core.scores import Scorers
from serving.core.session import Session

Reach = Literal["none", "some", "all", "handover"]


class Offload(Protocol):
    @property
    def reach(self) -> Reach:
        """Which drafts are asked about; a handover drafts nothing and leaves all of it to the route."""
        ...

    @property
    def probes(self) -> tuple[str, ...]: ...

    def ask(self, s: Session) -> int:
        """Tokens that the route may write: 0 keeps the draft, 1 asks for a verdict, more hands over."""
        ...


@runtime_checkable
class Trained(Protocol):
    """An offload that decides by scores which were trained."""

    @property
    def scorers(self) -> Scorers: ...

    def stays(self, s: Session) -> bool:
        """Is it settled beforehand that nothing of this session is asked?"""
        ...


@dataclass(frozen=True)
class Always:
    """Every draft is verified (SLED, WISP, HAT)."""

    reach: ClassVar[Literal["all"]] = "all"
    probes: ClassVar[tuple[str, ...]] = ()

    def ask(self, s: Session) -> int:  # noqa: ARG002
        return 1


@dataclass(frozen=True)
class Never:
    """Nothing leaves the device (edge-centric)."""

    reach: ClassVar[Literal["none"]] = "none"
    probes: ClassVar[tuple[str, ...]] = ()

    def ask(self, s: Session) -> int:  # noqa: ARG002
        return 0


@dataclass(frozen=True)
class Handover:
    """The route writes all of it (cloud-centric)."""

    reach: ClassVar[Literal["handover"]] = "handover"
    probes: ClassVar[tuple[str, ...]] = ()

    def ask(self, s: Session) -> int:
        return s.remaining


@dataclass(frozen=True)
class Random:
    """Any draft, with the probability `budget`: what a selection has to be better than."""

    budget: float
    reach: ClassVar[Literal["some"]] = "some"
    probes: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_budget(self.budget)

    def ask(self, s: Session) -> int:
        return int(s.luck("offload_random") < self.budget)


def check_budget(budget: float) -> None:
    """Raises ValueError for what is no share."""
    if not 0.0 <= budget <= 1.0:
        raise ValueError(f"policy.offload.budget is {budget}; it is a share of draft chunks: 0 to 1")
