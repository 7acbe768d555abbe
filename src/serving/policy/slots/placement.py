"""Slot `placement`: which layers of the target run where."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from serving.messages import Hop, Span
from serving.policy.partition.division import ModelPartition

LayersByTier = dict[str, tuple[int, int]]
"""Tier -> (start, end) of its layers, in the order of the hops."""

DEVICE_TIER = "here"
"""The tier of a hop that runs on the requesting device."""


class Placement(Protocol):
    def hops(self, layers: int, timed_layers: int) -> tuple[Hop, ...]:
        """The hops of a target of `layers` layers; empty: no target.

        `timed_layers`: layers of the architecture that it stands for in timing.
        """
        ...


@dataclass(frozen=True)
class DeviceOnlyPlacement:
    """No target: the device's model writes everything."""

    def hops(self, layers: int, timed_layers: int) -> tuple[Hop, ...]:  # noqa: ARG002
        return ()


@dataclass(frozen=True)
class CloudPlacement:
    """The whole target runs on a node of one tier."""

    tier: str = "cloud"

    def hops(self, layers: int, timed_layers: int) -> tuple[Hop, ...]:  # noqa: ARG002
        return (Hop(self.tier, Span(0, layers, embedding=True, lm_head=True)),)


@dataclass(frozen=True)
class ColocatedPlacement:
    """The whole target runs on a node of one tier, and what drafts beside it; users' devices only show the tokens
    (co-located speculation: Lyu et al., Speculation at a Distance, 2026).

    `drafter`: `shared`, the draft model takes time and memory of the target's chips; or `apart`, each node has as many
    chips of the same kind again for it, so that some sessions draft while others are verified.
    """

    tier: str = "cloud"
    drafter: Literal["shared", "apart"] = "shared"

    def hops(self, layers: int, timed_layers: int) -> tuple[Hop, ...]:  # noqa: ARG002
        return (Hop(self.tier, Span(0, layers, embedding=True, lm_head=True)),)


@dataclass(frozen=True)
class TieredPlacement:
    """The target's blocks divided over the testbed's tiers, each sending hidden states to the next (Hyperion, IV-A)."""

    partition: ModelPartition

    def hops(self, layers: int, timed_layers: int) -> tuple[Hop, ...]:  # noqa: ARG002
        """Raises ValueError for a model with fewer layers than tiers."""
        parts = scale_layers(self.partition.blocks_by_tier(self.partition.split_points), layers)
        last = len(parts) - 1
        return tuple(
            Hop(tier, Span(a, b, embedding=i == 0, lm_head=i == last), "last" if i == last else "all")
            for i, (tier, (a, b)) in enumerate(parts.items())
        )


def cloud_or_tiers(partition: ModelPartition) -> CloudPlacement | TieredPlacement:
    """The whole target on a node of the cloud; on a testbed of tiers, divided over them."""
    return TieredPlacement(partition) if partition.tiers else CloudPlacement()


@dataclass(frozen=True)
class UShapedPlacement:
    """Embedding and first layers on the device, the middle in the cloud, the LM head on the device: only hidden states
    cross the link (HAT, sections 2.2 and 3.4).

    Args:
        shallow_layers: m, layers of the timed architecture on the device; the model that runs has its share of them, at
            least one.
        pipeline_stages: P: the cloud's nodes that each run an equal share of the middle.
        download: which deep hidden states of a prompt are sent to the device: `all`, or only the `last`, which is all
            that it needs. The paper does not say; its U-shape's times fit "all".
        stream_download: True: a prompt's parts, as the device or the scheduler cut them, are downloaded one by one, as
            they are computed. False: together, when the prompt is computed (U-Sarathi, section 4.2: it does not overlap
            transmission and computation).
        partition: divides the middle over a testbed's tiers; None: over `pipeline_stages` cloud nodes.
    """

    shallow_layers: int = 2
    pipeline_stages: int = 1
    download: Literal["all", "last"] = "last"
    partition: ModelPartition | None = None
    stream_download: bool = field(default=True, metadata={"omitted_at_default": True})

    def __post_init__(self) -> None:
        if self.partition and self.pipeline_stages != 1:
            raise ValueError(
                f"policy.placement: pipeline_stages is {self.pipeline_stages}, and a partition divides the middle over "
                "the tiers of the testbed; set pipeline_stages=1, or partition=null"
            )
        for name in ("shallow_layers", "pipeline_stages"):
            if getattr(self, name) < 1:
                raise ValueError(f"policy.placement.{name} is {getattr(self, name)}; it must be at least 1")

    def device_layers(self, layers: int, timed_layers: int) -> int:
        """How many of the first layers run on the device.

        Raises ValueError if that leaves the cloud's nodes less than one layer each.
        """
        kept = max(1, round(layers * self.shallow_layers / timed_layers))
        if layers - kept < self.pipeline_stages:
            raise ValueError(
                f"policy.placement: of {layers} layers {kept} stay on the device, which leaves less than one for each "
                f"of pipeline_stages={self.pipeline_stages}; set fewer pipeline_stages, or shallow_layers below "
                f"{self.shallow_layers}"
            )
        return kept

    def hops(self, layers: int, timed_layers: int) -> tuple[Hop, ...]:
        kept = self.device_layers(layers, timed_layers)
        parts = self._cloud_layers(layers - kept)
        out = ["all"] * (len(parts) - 1) + [self.download]
        middle = [
            Hop(tier, Span(kept + a, kept + b), each) for (tier, (a, b)), each in zip(parts.items(), out, strict=True)
        ]
        return (
            Hop(DEVICE_TIER, Span(0, kept, embedding=True), "all"),
            *middle,
            Hop(DEVICE_TIER, Span(layers, layers, lm_head=True)),
        )

    def _cloud_layers(self, layers: int) -> LayersByTier:
        """The middle's layers of each stage or tier."""
        if self.partition:
            return scale_layers(
                self.partition.blocks_by_tier(self.partition.split_points_from(self.shallow_layers)), layers
            )
        ends = [round(layers * i / self.pipeline_stages) for i in range(self.pipeline_stages + 1)]
        return {stage_tier(i): (ends[i], ends[i + 1]) for i in range(self.pipeline_stages)}


def scale_layers(layers_by_tier: LayersByTier, layers: int) -> LayersByTier:
    """The same division for a model of `layers` layers: in proportion, with at least one layer for each tier.

    Raises ValueError for a model with fewer layers than tiers.
    """
    if layers < len(layers_by_tier):
        raise ValueError(
            f"policy.placement: {layers} layers cannot be divided over {len(layers_by_tier)} tiers "
            f"({', '.join(layers_by_tier)}); serve a model with more layers, or name fewer tiers"
        )
    depth = max(last for _, last in layers_by_tier.values())
    found, a = {}, 0
    for i, (tier, (_, last)) in enumerate(layers_by_tier.items()):
        b = min(max(a + 1, round(layers * last / depth)), layers - (len(layers_by_tier) - 1 - i))
        found[tier], a = (a, b), b
    return found


def stage_tier(index: int) -> str:
    """The tier of a pipeline stage, counted from 0."""
    return f"cloud.{index}" if index else "cloud"
