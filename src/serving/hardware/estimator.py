"""Predicts a batch's time before it runs, for schedulers: WISP's verification-time estimator (section 4.4)."""

from dataclasses import dataclass

from serving.core.queued_request import QueuedRequest
from serving.hardware.latency import (
    IDENTITY_SCALE,
    ForwardLoad,
    LatencyModel,
    LayerScale,
    LinearLatency,
    forward_load,
)
from serving.hardware.roofline import RooflineLatency, linear_fit
from serving.messages import ForwardWork, Span


@dataclass(frozen=True)
class Estimator:
    """WISP, Eq. 19, with the coefficients of a chip; `scale` maps served layers to timed ones.

    It is linear: a request adds the same time to every batch. Without `latency` (None) everything takes 0 s.
    """

    latency: LinearLatency | None
    scale: LayerScale = IDENTITY_SCALE

    @classmethod
    def of(cls, latency: LatencyModel, scale: LayerScale) -> "Estimator":
        """The estimator of a chip: its measured coefficients, or Eq. 19 fitted to its roofline."""
        fitted = linear_fit(latency) if isinstance(latency, RooflineLatency) else latency
        assert isinstance(fitted, LinearLatency)
        return cls(fitted, scale)

    def constant_s(self, span: Span) -> float:
        """Fixed seconds per batch, independent of its requests; includes the head's constant if the span has a head."""
        empty = ForwardLoad(self.scale.layers_for(span), 0, 0, 0, int(span.lm_head), extra_sessions=-1)
        return 2 * self._seconds(empty) - self._seconds(empty._replace(head_tokens=2 * empty.head_tokens))

    def pass_s(self, span: Span) -> float:
        """Seconds of a pass with one token of one session, without reading its cache."""
        return self._seconds(ForwardLoad(self.scale.layers_for(span), 1, 1, 0, int(span.lm_head)))

    def per_token_s(self, span: Span) -> float:
        """Seconds that one more token without the head adds to `pass_s`."""
        return self._seconds(ForwardLoad(self.scale.layers_for(span), 2, 2, 0, int(span.lm_head))) - self.pass_s(span)

    def marginal_s(self, queued: QueuedRequest) -> float:
        """Seconds that the remaining tokens of a request add to a batch; cached in `queued.cost_s`."""
        if queued.cost_s < 0:
            span, seq, n, cached = queued.span, queued.slice, queued.remaining_tokens, queued.cached_len
            empty = ForwardLoad(self.scale.layers_for(span), 0, 0, 0, int(span.lm_head))
            head_tokens = (1 + (seq.num_drafts + 1 if seq.rule else 0)) * empty.head_tokens
            load = ForwardLoad(empty.layers, n, (cached + n) * n, cached, head_tokens, extra_sessions=1)
            queued.cost_s = max(0.0, self._seconds(load) - self._seconds(empty))
        return queued.cost_s

    def batch_s(self, work: ForwardWork) -> float:
        """Predicted seconds of a batch as it runs, for comparison with its actual time."""
        return self._seconds(forward_load(work).with_layers(self.scale.layers_for(work.span)))

    def _seconds(self, load: ForwardLoad) -> float:
        """Seconds of a load that counts timed layers."""
        return self.latency.total_seconds((load,), 1, 1) if self.latency else 0.0


ZERO_ESTIMATOR = Estimator(None)
"""For an unknown chip: everything takes 0 s."""
