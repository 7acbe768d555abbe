"""Which layers of a timed architecture the layers of a model that runs here stand for."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.messages import Hop, Span

LayerRange = tuple[int, int]


@dataclass(frozen=True)
class LayerScale:
    """Every layer of a model of `layers` stands for depth / layers of them, but for spans that are named apart."""

    layers: int
    timed_layers: int
    range_overrides: dict[LayerRange, LayerRange] = field(default_factory=dict)
    """(first, last) here -> there: where a placement splits the model, both are split at the same place."""

    def layers_for(self, span: Span) -> float:
        """Layers of the timed architecture that a span stands for."""
        ends = self.range_overrides.get((span.start_layer, span.end_layer))
        return ends[1] - ends[0] if ends else (span.end_layer - span.start_layer) * self.timed_layers / self.layers


IDENTITY_SCALE = LayerScale(1, 1)
"""Every layer stands for one."""


def layer_scale(served_hops: Sequence[Hop], timed_hops: Sequence[Hop], layers: int, timed_layers: int) -> LayerScale:
    """The scale of a model whose route is `served_hops`, and would be `timed_hops` if it had as many layers as it
    stands for.
    """
    if len(served_hops) < 2:
        return LayerScale(layers, timed_layers)
    spans = zip((hop.span for hop in served_hops), (hop.span for hop in timed_hops), strict=True)
    return LayerScale(
        layers, timed_layers, {(a.start_layer, a.end_layer): (b.start_layer, b.end_layer) for a, b in spans}
    )
