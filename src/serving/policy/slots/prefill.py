"""Slot `prefill`: when the prompt travels to the cloud, and in which parts."""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Literal, Protocol

from serving.core.session import Session

When = Literal["ahead", "first", "lazy"]


class Prefill(Protocol):
    @property
    def when(self) -> When:
        """ahead: beside the first drafts; first: before them, for the target's first token; lazy: with the first
        question.
        """
        ...

    @property
    def monitors(self) -> bool:
        """Does it need to know how link and cloud fare?"""
        ...

    def chunk(self, s: Session) -> int:
        """Rows in one message at most."""
        ...


@dataclass(frozen=True)
class Whole:
    """The prompt travels in one message; how the cloud runs it is its scheduler's choice."""

    when: When = "lazy"
    monitors: ClassVar[bool] = False

    def chunk(self, s: Session) -> int:
        return s.prompt + s.call.limit


@dataclass(frozen=True)
class Parts:
    """The prompt travels in parts of `rows`, so that the cloud computes while the rest is on the way."""

    rows: int
    when: When = "ahead"
    monitors: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"policy.prefill.rows is {self.rows}; a part holds at least 1 token")

    def chunk(self, s: Session) -> int:  # noqa: ARG002
        return self.rows


@dataclass(frozen=True)
class Balanced:
    """Parts of such a size that one is on its way while the cloud waits for its turn and computes the one before (HAT,
    Eq. 3).

    X A / beta = (g(mu) + g(mu + X)) / P with the straight line g that the monitor fits has one root or none. None: the
    cloud takes longer for a row than the link, however many there are, and the prompt travels whole. Before the first
    answer nothing is known of either, and parts have `first` rows.

    The equation leaves the device's own first layers out, which take a weak chip longer for a small part than the link
    takes to send it; with `own` a part is at least as large as lets the link keep up with them.

    Args:
        first: rows of a part while link and cloud are unknown.
        least: the smallest part; so many rows take a chip hardly longer than a few (Fig. 1c), and fewer wait oftener.
    """

    first: int = 64
    least: int = 64
    own: bool = True
    when: When = "first"
    monitors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("first", "least"):
            if getattr(self, name) < 1:
                raise ValueError(f"policy.prefill.{name} is {getattr(self, name)}; a part holds at least 1 token")

    def chunk(self, s: Session) -> int:
        known = s.monitor.condition
        if known is None or not known.uplink_mbps:
            return self.first
        row_s = 8e-6 * s.monitor.row_nbytes / known.uplink_mbps
        root = balanced(row_s, known.base_s, known.row_s, known.tokens, known.nodes)
        if root is not None and self.own:
            slope, hop = row_s - s.monitor.hop.row_s, s.monitor.hop
            root = max(root, hop.base_s / slope) if slope > 0 else None
        return s.prompt + s.call.limit if root is None else max(self.least, ceil(root))


def balanced(upload_row_s: float, base_s: float, row_s: float, mu: float, nodes: int) -> float | None:
    """X of Eq. 3: rows whose upload takes as long as a batch of mu rows and then one of mu + X take one of `nodes`
    equal nodes; None where there is no such X.
    """
    slope = upload_row_s - row_s / nodes
    return 2 * (base_s + row_s * mu) / nodes / slope if slope > 0 else None
