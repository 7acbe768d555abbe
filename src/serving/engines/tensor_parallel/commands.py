"""What the process that leads tells those that follow: what happened to its caches, and what to run."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Open:
    """`Cache.open`, of a slot that has `length` tokens until then."""

    cache: int
    session: str
    part: int | None
    last: int
    length: int
    start: int
    keep: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Drop:
    """`Cache.drop`."""

    cache: int
    session: str
    part: int | None


@dataclass(frozen=True, slots=True)
class Share:
    """A `Lot`, and how its slot stands; who follows has that slot, too."""

    session: str
    part: int | None
    length: int
    drafts_at: int
    n: int
    parents: tuple[int, ...] | None
    past: int | None


@dataclass(frozen=True, slots=True)
class Pass:
    """Layers first..last-1 over the rows of all shares, whose hidden states are broadcast next."""

    cache: int
    first: int
    last: int
    shares: tuple[Share, ...]


Order: TypeAlias = Open | Drop | Pass
