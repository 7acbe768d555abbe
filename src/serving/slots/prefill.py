"""Slot `prefill`: when the prompt travels to the cloud, and in which parts."""

from dataclasses import dataclass
from typing import Literal, Protocol

from serving.nodes.session import Session

When = Literal["ahead", "first", "lazy"]


class Prefill(Protocol):
    @property
    def when(self) -> When:
        """ahead: beside the first drafts; first: before them, for the target's first token; lazy: with the first
        question.
        """
        ...

    def chunk(self, s: Session) -> int:
        """Rows in one message at most."""
        ...


@dataclass(frozen=True)
class Whole:
    """The prompt travels in one message; how the cloud runs it is its scheduler's choice."""

    when: When = "lazy"

    def chunk(self, s: Session) -> int:
        return s.prompt + s.call.limit


@dataclass(frozen=True)
class Parts:
    """The prompt travels in parts of `rows`, so that the cloud computes while the rest is on the way."""

    rows: int
    when: When = "ahead"

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"policy.prefill.rows is {self.rows}; a part holds at least 1 token")

    def chunk(self, s: Session) -> int:  # noqa: ARG002
        return self.rows
