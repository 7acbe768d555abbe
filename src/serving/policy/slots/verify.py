"""Slot `verify`: the acceptance rule. Where it runs is no choice: it runs where the span with the head is."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from serving.core.session import Session
from serving.messages import Rule


class Verify(Protocol):
    @property
    def send(self) -> bool:
        """Do the drafts travel? If not, the target writes the token in their place."""
        ...

    @property
    def greedy(self) -> bool:
        """Does it know greedy decoding only?"""
        ...

    def rule(self, s: Session) -> Rule: ...


@dataclass(frozen=True)
class Lossless:
    """The output is the target's own: greedy match, or speculative sampling with the renormalised residual
    (Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023)."""

    send: ClassVar[bool] = True
    greedy: ClassVar[bool] = False

    def rule(self, s: Session) -> Rule:
        return "sample" if s.call.sampling else "greedy"


@dataclass(frozen=True)
class Replace:
    """The drafts stay on the device: where one is offloaded, the target writes the token (Hybrid, token routing)."""

    send: ClassVar[bool] = False
    greedy: ClassVar[bool] = False

    def rule(self, s: Session) -> Rule:
        return "sample" if s.call.sampling else "greedy"


@dataclass(frozen=True)
class Tree:
    """Of a tree of drafts the longest path that the target would have written stands (Medusa; tree verification of HAT,
    section 4.1), greedily.
    """

    send: ClassVar[bool] = True
    greedy: ClassVar[bool] = True

    def rule(self, s: Session) -> Rule:  # noqa: ARG002
        return "tree"
