"""Slot `verify`: the acceptance rule. It runs where the target's LM head is."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from serving.core.session import Session
from serving.messages import AcceptanceRule


class Verify(Protocol):
    @property
    def sends_drafts(self) -> bool:
        """True if drafts are sent. If not, the target writes a token in their place."""
        ...

    @property
    def greedy_only(self) -> bool:
        """True if it supports greedy decoding only."""
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
    """Drafts stay on the device: if one is offloaded, the target writes its token (Hybrid, token routing)."""

    sends_drafts: ClassVar[bool] = False
    greedy_only: ClassVar[bool] = False

    def rule(self, session: Session) -> AcceptanceRule:
        return "sample" if session.request.sampling else "greedy"


@dataclass(frozen=True)
class TreeVerify:
    """Accepts the longest path of a tree of drafts that the target would write greedily (Medusa; HAT, section 4.1)."""

    sends_drafts: ClassVar[bool] = True
    greedy_only: ClassVar[bool] = True

    def rule(self, session: Session) -> AcceptanceRule:  # noqa: ARG002
        return "greedy"
