"""Slot `offload`: which drafts are sent to the target."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, SupportsIndex, get_args, runtime_checkable

from serving.core.session import Session

OffloadScope = Literal["none", "some", "all", "full"]
_MOST_TOKENS = 2**31


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


def check_scope(offload: Offload) -> None:
    """Raises ValueError for a scope that does not exist."""
    if offload.scope not in get_args(OffloadScope):
        allowed = ", ".join(get_args(OffloadScope))
        raise ValueError(f"{type(offload).__name__}.scope is {offload.scope!r}; allowed are {allowed}")


def budget_range(offload: Offload) -> tuple[int, int]:
    """The least and the most that `tokens_to_offload` may return by the choice's own `scope`."""
    return int(offload.scope in ("all", "full")), 0 if offload.scope == "none" else _MOST_TOKENS


def valid_budget(offload: Offload, budget: object) -> int:
    """A returned number of another type as an int. Raises ValueError for what is none, or breaks the choice's scope."""
    least, most = budget_range(offload)
    number = budget.__index__() if isinstance(budget, SupportsIndex) else -1
    if least <= number <= most:
        return number
    wanted = "a whole number is wanted: 0 keeps the draft, 1 has it verified, more lets the target write on"
    if 0 <= number <= _MOST_TOKENS:
        sent = "every draft is" if least else "none is"
        wanted = f"its scope is {offload.scope!r}, by which {sent} sent; a choice that sends some has the scope 'some'"
    raise ValueError(f"{type(offload).__name__}.tokens_to_offload returned {budget!r}; {wanted}")


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
