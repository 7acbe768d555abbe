"""Slot `verify`: the acceptance rule. Where it runs is no choice: it runs where the span with the head is."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from serving.core.session import Session
from serving.messages import AcceptanceRule


class Verify(Protocol):
    @property
    def sends_drafts(self) -> bool:
        """Do the drafts travel? If not, the target writes the token in their place."""
        ...

    @property
    def greedy_only(self) -> bool:
        """Does it know greedy decoding only?"""
        ...

    def rule(self, session: Session) -> AcceptanceRule: ...


@dataclass(frozen=True)
class Lossless:
    """The output is the target's own: greedy match, or speculative sampling with the renormalised residual
    (Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023)."""

    sends_drafts: ClassVar[bool] = True
    greedy_only: ClassVar[bool] = False

    def rule(self, session: Session) -> AcceptanceRule:
        return "sample" if session.request.sampling else "greedy"


@dataclass(frozen=True)
class Replace:
    """The drafts stay on the device: where one is offloaded, the target writes the token (Hybrid, token routing)."""

    sends_drafts: ClassVar[bool] = False
    greedy_only: ClassVar[bool] = False

    def rule(self, session: Session) -> AcceptanceRule:
        return "sample" if session.request.sampling else "greedy"


@dataclass(frozen=True)
class TreeVerify:
    """Of a tree of drafts the longest path that the target would have written stands (Medusa; tree verification of HAT,
    section 4.1), greedily.
    """

    sends_drafts: ClassVar[bool] = True
    greedy_only: ClassVar[bool] = True

    def rule(self, session: Session) -> AcceptanceRule:  # noqa: ARG002
        return "tree"
