"""Slot `placement`: which layers of the target run where."""

from dataclasses import dataclass
from typing import Literal, Protocol

from serving.messages import Hop, Span
from serving.policy.partition.division import Division

Parts = dict[str, tuple[int, int]]
"""Tier -> (first, last) of its layers, in the order of the route."""

HERE = "here"
"""The tier of a hop that runs on the device which asks."""


class Placement(Protocol):
    def route(self, layers: int, depth: int) -> tuple[Hop, ...]:
        """The hops of a target of that many layers, which stand for `depth`; none: there is no target."""
        ...


@dataclass(frozen=True)
class DeviceOnly:
    """The device's model is all there is."""

    def route(self, layers: int, depth: int) -> tuple[Hop, ...]:  # noqa: ARG002
        return ()


@dataclass(frozen=True)
class Cloud:
    """The whole target runs on a node of one tier."""

    tier: str = "cloud"

    def route(self, layers: int, depth: int) -> tuple[Hop, ...]:  # noqa: ARG002
        return (Hop(self.tier, Span(0, layers, embed=True, head=True)),)


@dataclass(frozen=True)
class Tiers:
    """The target's blocks over the testbed's tiers, hidden states from each to the next (Hyperion, section IV-A)."""

    division: Division

    def route(self, layers: int, depth: int) -> tuple[Hop, ...]:  # noqa: ARG002
        """Raises ValueError for a model with fewer layers here than tiers that are to have any."""
        parts = scaled(self.division.parts(self.division.whole), layers)
        last = len(parts) - 1
        return tuple(
            Hop(tier, Span(a, b, embed=i == 0, head=i == last), "last" if i == last else "all")
            for i, (tier, (a, b)) in enumerate(parts.items())
        )


@dataclass(frozen=True)
class UShape:
    """Embedding and first layers on the device, the middle in the cloud, the head on the device again: only hidden
    states cross the link (HAT, sections 2.2 and 3.4).

    Args:
        shallow: m, layers of the timed architecture that run on the device; the model that runs here has its share of
            them, one at least.
        stages: P, the pipeline's length: so many nodes of the cloud have an equal share of the middle each.
        division: how the middle is divided over a testbed's tiers; None: over `stages` nodes of its cloud.
        download: which deep hidden states of a prompt go down: `all`, or the `last` only, which is all that anybody
            needs. The paper does not say; its U-shape's times fit "all".
    """

    shallow: int = 2
    stages: int = 1
    download: Literal["all", "last"] = "last"
    division: Division | None = None

    def __post_init__(self) -> None:
        for name in ("shallow", "stages"):
            if getattr(self, name) < 1:
                raise ValueError(f"policy.placement.{name} is {getattr(self, name)}; it must be at least 1")

    def kept(self, layers: int, depth: int) -> int:
        """How many of the first layers stay on the device.

        Raises ValueError where that leaves the cloud's nodes fewer than one each.
        """
        kept = max(1, round(layers * self.shallow / depth))
        if layers - kept < self.stages:
            raise ValueError(
                f"policy.placement: of {layers} layers {kept} stay on the device, which leaves less than one for each "
                f"of stages={self.stages}; set fewer stages, or shallow below {self.shallow}"
            )
        return kept

    def route(self, layers: int, depth: int) -> tuple[Hop, ...]:
        kept = self.kept(layers, depth)
        parts = self._parts(layers - kept)
        out = ["all"] * (len(parts) - 1) + [self.download]
        middle = [
            Hop(tier, Span(kept + a, kept + b), each) for (tier, (a, b)), each in zip(parts.items(), out, strict=True)
        ]
        return (Hop(HERE, Span(0, kept, embed=True), "all"), *middle, Hop(HERE, Span(layers, layers, head=True)))

    def _parts(self, layers: int) -> Parts:
        """The middle's layers at each stage, or at each tier."""
        if self.division:
            return scaled(self.division.parts(self.division.inner(self.shallow)), layers)
        ends = [round(layers * i / self.stages) for i in range(self.stages + 1)]
        return {stage(i): (ends[i], ends[i + 1]) for i in range(self.stages)}


def scaled(parts: Parts, layers: int) -> Parts:
    """The same division of a model of so many layers: in proportion, and each part one layer at least.

    Raises ValueError for a model with fewer layers than parts.
    """
    if layers < len(parts):
        raise ValueError(
            f"policy.placement: {layers} layers cannot be divided over {len(parts)} tiers ({', '.join(parts)}); serve "
            "a model with more layers, or name fewer tiers"
        )
    depth = max(last for _, last in parts.values())
    found, a = {}, 0
    for i, (tier, (_, last)) in enumerate(parts.items()):
        b = min(max(a + 1, round(layers * last / depth)), layers - (len(parts) - 1 - i))
        found[tier], a = (a, b), b
    return found


def stage(index: int) -> str:
    """The tier of a pipeline's stage, counted from 0."""
    return f"cloud.{index}" if index else "cloud"
