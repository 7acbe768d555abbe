"""Which layers of a timed architecture the layers of a model that runs here stand for."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.messages import Hop, Span

Ends = tuple[int, int]


@dataclass(frozen=True)
class Scale:
    """Every layer of a model of `layers` stands for depth / layers of them, but for spans that are named apart."""

    layers: int
    depth: int
    apart: dict[Ends, Ends] = field(default_factory=dict)
    """(first, last) here -> there: where a placement splits the model, both are split at the same place."""

    def of(self, span: Span) -> float:
        """Layers of the timed architecture that a span stands for."""
        ends = self.apart.get((span.first, span.last))
        return ends[1] - ends[0] if ends else (span.last - span.first) * self.depth / self.layers


WHOLE = Scale(1, 1)
"""Every layer stands for one."""


def between(here: Sequence[Hop], there: Sequence[Hop], layers: int, depth: int) -> Scale:
    """The scale of a model whose route is `here`, and would be `there` if it had as many layers as it stands for."""
    if len(here) < 2:
        return Scale(layers, depth)
    spans = zip((hop.span for hop in here), (hop.span for hop in there), strict=True)
    return Scale(layers, depth, {(a.first, a.last): (b.first, b.last) for a, b in spans})
