"""How long a forward takes: linear in what it did."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from serving.messages import Hop, Span

PROFILE_FILE = "latency.json"
COEFFICIENTS = ("a_s", "b_compute_s", "b_read_s", "c_s", "head_token_s", "head_c_s", "session_s", "wake_s")
"""What a latency is linear in: WISP, Eq. 19, the LM head's row and constant, a further session, a piece of work."""


class ForwardLoad(NamedTuple):
    """What one forward did, in the terms of WISP, Eq. 18 and 19."""

    layers: float
    """Layers of the timed architecture that ran; a split or an early exit runs fewer than all."""
    num_tokens: float
    """Tokens through the linear layers, summed over the batch: N_linear."""
    interactions: float
    """Query times key pairs, (cached + new) x new summed over the batch: N_interactions."""
    cached_tokens: float
    """Cached tokens read, summed over the batch's sessions: N_cached."""
    head_tokens: float = 0.0
    """Rows through the LM head."""
    num_forwards: float = 1
    """How many forwards of as many layers, one after the other, these sums are of: each costs the constant part."""
    extra_sessions: int = 0
    """Sessions in each forward beyond its first, summed: every session has attention calls of its own."""


def batch_load(layers: float, spans: Iterable[tuple[int, int]], head_tokens: float = 0.0) -> ForwardLoad:
    """The load of one batched forward, from (cached, new) tokens of each session in it.

    Interactions follow WISP, Eq. 18: the whole rectangle, without halving the causal part of a prefill. Coefficients
    that were fitted on one way of counting are wrong for the other, so everybody counts here.
    """
    rows = interactions = read = sessions = 0
    for cached, new in spans:
        sessions += 1
        rows += new
        interactions += (cached + new) * new
        read += cached
    return ForwardLoad(layers, rows, interactions, read, head_tokens, extra_sessions=max(0, sessions - 1))


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """Coefficients of `a*N_linear + b_compute*N_interactions + b_read*N_cached + c` (WISP, Eq. 19), and the LM head's.

    a, b_compute, b_read and c are seconds for all `layers` together; a forward of fewer layers takes its share of each.
    The head is apart, because most rows of a prefill never meet it; coefficients fitted on whole forwards leave it 0.
    `session_s` and `wake_s` are ours, and 0 where nobody measured them.
    """

    a_s: float
    b_compute_s: float
    b_read_s: float
    c_s: float
    layers: int
    source: str
    head_token_s: float = 0.0
    head_c_s: float = 0.0
    session_s: float = 0.0
    """Of each session beyond the first in a forward, for all layers."""
    wake_s: float = 0.0
    """Of each piece of work, however many forwards it has: what the first one costs more after a rest."""

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"latency from {self.source}: layers={self.layers} must be at least 1.")
        for name in COEFFICIENTS:
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise ValueError(
                    f"latency from {self.source}: {name}={value} must be a finite number of seconds, 0 or more. "
                    "A fit with negative coefficients needs more varied configurations."
                )

    def seconds(self, load: ForwardLoad) -> float:
        """Seconds that one forward takes, by itself."""
        return self.total_seconds((load,), 1, 1)

    def total_seconds(self, loads: Sequence[ForwardLoad], timed_layers: int, served_layers: int) -> float:
        """Seconds of one piece of work, whose forwards follow each other without a rest, of a model of `served_layers`
        layers that stands for one of `timed_layers`: each of its layers for depth / of layers.
        """
        a_s, b_compute_s, b_read_s, c_s = self.a_s, self.b_compute_s, self.b_read_s, self.c_s
        total_s = self.wake_s if loads else 0.0
        for layers, rows, interactions, cached, head_rows, forwards, further in loads:
            body_s = a_s * rows + b_compute_s * interactions + b_read_s * cached + c_s * forwards
            if further:
                body_s += self.session_s * further
            total_s += layers * timed_layers / (served_layers * self.layers) * body_s
            if head_rows:
                total_s += self.head_token_s * head_rows + self.head_c_s * forwards
        return total_s


@dataclass(frozen=True)
class FittedLatencies:
    """Coefficients that somebody fitted on measurements, by the name of the architecture."""

    source: str
    latencies: dict[str, LatencyModel]


def load_fitted_latencies(path: Path) -> FittedLatencies:
    """Read a profile artifact: `{"source": ..., "latencies": {name: {...}}}` in `latency.json`, or the folder with it.

    Raises ValueError that names the file when it is missing, cut off, or not of this form.
    """
    file = path / PROFILE_FILE if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return FittedLatencies(
            str(data["source"]), {name: LatencyModel(**fields) for name, fields in data["latencies"].items()}
        )
    except FileNotFoundError:
        raise ValueError(f"there is no profile at {file}. Run the profile stage first (stage=profile).") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"profile {file} cannot be read ({error}). Delete it and profile again.") from None


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
