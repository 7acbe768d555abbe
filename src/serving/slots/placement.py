"""Slot `placement`: which layers of the target run where."""

from dataclasses import dataclass
from typing import Protocol

from serving.messages import Hop, Span


class Placement(Protocol):
    def route(self, layers: int) -> tuple[Hop, ...]:
        """The hops of a target of that many layers; none: there is no target. The node "here" is the device itself."""
        ...


@dataclass(frozen=True)
class DeviceOnly:
    """The device's model is all there is."""

    def route(self, layers: int) -> tuple[Hop, ...]:  # noqa: ARG002
        return ()


@dataclass(frozen=True)
class Cloud:
    """The whole target runs on a node of one tier."""

    tier: str = "cloud"

    def route(self, layers: int) -> tuple[Hop, ...]:
        return (Hop(self.tier, Span(0, layers, embed=True, head=True)),)
