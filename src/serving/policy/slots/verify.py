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

    def rule(self, session: Session) -> AcceptanceRule: ...


@dataclass(frozen=True)
class Lossless:
    """The output is the target's own: greedy match, or speculative sampling with the renormalised residual
    (Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023)."""

    sends_drafts: ClassVar[bool] = True

    def rule(self, session: Session) -> AcceptanceRule:
        return "sample" if session.request.sampling else "greedy"


@dataclass(frozen=True)
class Replace:
    """Drafts stay on the device: if one is offloaded, the target writes its token (Hybrid, token routing)."""

    sends_drafts: ClassVar[bool] = False

    def rule(self, session: Session) -> AcceptanceRule:
        return "sample" if session.request.sampling else "greedy"


@dataclass(frozen=True)
class TreeVerify:
    """Accepts a path of a tree of drafts: the longest one that the target would write greedily (Medusa; HAT, section
    4.1), or by recursive rejection where it samples (SpecInfer, Miao et al., 2024, section 4.3).
    """

    sends_drafts: ClassVar[bool] = True

    def rule(self, session: Session) -> AcceptanceRule:
        return "sample" if session.request.sampling else "greedy"
