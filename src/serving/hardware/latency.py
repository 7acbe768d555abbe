"""The load of a forward, latency models that turn loads into seconds, and the scale from served to timed layers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple, Protocol

from serving.messages import ForwardWork, Hop, Span

COEFFICIENTS = ("a_s", "b_compute_s", "b_read_s", "c_s", "head_token_s", "head_c_s", "session_s", "wake_s")
"""Coefficients of a latency: WISP, Eq. 19; per LM-head token and constant; per extra session; per work item."""


class ForwardLoad(NamedTuple):
    """The load of one forward in the terms of WISP, Eq. 18 and 19."""

    layers: float
    """Layers that ran; a split model or an early exit runs fewer than all."""
    num_tokens: float
    """Tokens through the linear layers, summed over the batch: N_linear."""
    interactions: float
    """(Query, key) pairs, (cached + new) x new summed over the batch: N_interactions."""
    cached_tokens: float
    """Cached tokens read, summed over the batch: N_cached."""
    head_tokens: float = 0.0
    """Tokens through the LM head."""
    num_forwards: float = 1
    """Number of consecutive forwards that these sums cover; each costs the constant part."""
    extra_sessions: int = 0
    """Sessions of each forward beyond its first, summed; every session has its own attention calls."""
    num_continued: float = 0
    """Of the forwards, those that continue one which another load counts: the process starts nothing anew."""

    def with_layers(self, layers: float) -> "ForwardLoad":
        """The same tokens through so many layers."""
        return ForwardLoad(layers, *self[1:])


def batch_load(layers: float, spans: Iterable[tuple[int, int]], head_tokens: float = 0.0) -> ForwardLoad:
    """The load of one batched forward, from (cached, new) tokens of each session.

    Interactions follow WISP, Eq. 18: the full rectangle, without halving the causal part of a prefill. Coefficients fit
    one way of counting only, so all callers must count here.
    """
    num_tokens = interactions = read = sessions = 0
    for cached, new in spans:
        sessions += 1
        num_tokens += new
        interactions += (cached + new) * new
        read += cached
    return ForwardLoad(layers, num_tokens, interactions, read, head_tokens, extra_sessions=max(0, sessions - 1))


def forward_load(work: ForwardWork) -> ForwardLoad:
    """The load of one hop. The head sees the last token and the drafts of slices that need a verdict."""
    span = work.span
    cached = [(seq.start, seq.num_tokens) for seq in work.slices] if span.start_layer < span.end_layer else []
    head_tokens = sum([seq.num_drafts + 1 for seq in work.slices if seq.rule]) if span.lm_head else 0
    return batch_load(span.end_layer - span.start_layer, cached, head_tokens)


class LatencyModel(Protocol):
    """Seconds of loads for one model on one chip: `LinearLatency`, or `RooflineLatency` from the chip's figures."""

    @property
    def layers(self) -> int: ...
    @property
    def source(self) -> str: ...
    def seconds(self, load: ForwardLoad) -> float:
        """Seconds of a single forward that counts timed layers."""
        ...

    def total_seconds(self, loads: Sequence[ForwardLoad], timed_layers: int, served_layers: int) -> float:
        """Seconds of one work item, whose forwards run without a pause.

        The model has `served_layers` layers and stands for one of `timed_layers`: each layer counts timed / served.
        """
        ...


@dataclass(frozen=True, slots=True)
class LinearLatency:
    """Coefficients of `a*N_linear + b_compute*N_interactions + b_read*N_cached + c` (WISP, Eq. 19), and of the LM head.

    a, b_compute, b_read and c are seconds for all `layers` together; a forward of fewer layers takes its share. The
    head is separate, because most tokens of a prefill skip it; it is 0 in coefficients fitted on whole forwards.
    `session_s` and `wake_s` are not in WISP, and 0 if not measured.
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
    """Per session of a forward beyond its first, for all layers."""
    wake_s: float = 0.0
    """Per work item, however many forwards it has: extra cost of the first forward after a pause."""
    forward_s: float = 0.0
    """Per forward that the process starts, however few layers it runs; 0 where `c_s` holds it."""

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"latency from {self.source}: layers={self.layers} must be at least 1.")
        for name in (*COEFFICIENTS, "forward_s"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise ValueError(
                    f"latency from {self.source}: {name}={value} must be a finite number of seconds, 0 or more. "
                    "A fit with negative coefficients needs more varied configurations."
                )

    def seconds(self, load: ForwardLoad) -> float:
        """Seconds of a single forward."""
        return self.total_seconds((load,), 1, 1)

    def total_seconds(self, loads: Sequence[ForwardLoad], timed_layers: int, served_layers: int) -> float:
        """Seconds of one work item, whose forwards run without a pause.

        The model has `served_layers` layers and stands for one of `timed_layers`: each layer counts timed / served.
        """
        a_s, b_compute_s, b_read_s, c_s = self.a_s, self.b_compute_s, self.b_read_s, self.c_s
        total_s = self.wake_s if loads else 0.0
        for layers, num_tokens, interactions, cached, head_tokens, forwards, extra_sessions, continued in loads:
            body_s = a_s * num_tokens + b_compute_s * interactions + b_read_s * cached + c_s * forwards
            if extra_sessions:
                body_s += self.session_s * extra_sessions
            total_s += layers * timed_layers / (served_layers * self.layers) * body_s
            if head_tokens:
                total_s += self.head_token_s * head_tokens + self.head_c_s * forwards
            total_s += self.forward_s * (forwards - continued)
        return total_s


LayerRange = tuple[int, int]


@dataclass(frozen=True)
class LayerScale:
    """Each of `layers` served layers stands for timed_layers / layers timed ones, except in `range_overrides`."""

    layers: int
    timed_layers: int
    range_overrides: dict[LayerRange, LayerRange] = field(default_factory=dict)
    """(start, end) served -> (start, end) timed: a placement splits both models at corresponding layers."""

    def layers_for(self, span: Span) -> float:
        """Timed layers that a span stands for."""
        timed = self.range_overrides.get((span.start_layer, span.end_layer))
        return timed[1] - timed[0] if timed else (span.end_layer - span.start_layer) * self.timed_layers / self.layers


IDENTITY_SCALE = LayerScale(1, 1)
"""Each layer stands for one."""


def layer_scale(served_hops: Sequence[Hop], timed_hops: Sequence[Hop], layers: int, timed_layers: int) -> LayerScale:
    """The scale of a model with hops `served_hops`, which stand for `timed_hops` of the timed model."""
    if len(served_hops) < 2:
        return LayerScale(layers, timed_layers)
    spans = zip((hop.span for hop in served_hops), (hop.span for hop in timed_hops), strict=True)
    return LayerScale(
        layers, timed_layers, {(a.start_layer, a.end_layer): (b.start_layer, b.end_layer) for a, b in spans}
    )
