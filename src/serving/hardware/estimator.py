"""How long a batch will take, before it runs: WISP's verification-time estimator (section 4.4), asked by schedulers."""

from dataclasses import dataclass

from serving.core.queued_request import QueuedRequest
from serving.hardware.latency import IDENTITY_SCALE, ForwardLoad, LatencyModel, LayerScale, batch_load
from serving.messages import ForwardWork, Span


@dataclass(frozen=True)
class Estimator:
    """Eq. 19 with the coefficients of a chip, for a model whose layers stand for those of a timed one by `scale`.

    Linear, so that a request adds the same to every batch: feasibility of a grown batch is one addition.
    """

    latency: LatencyModel | None
    scale: LayerScale = IDENTITY_SCALE

    def constant_s(self, span: Span) -> float:
        """What a batch costs whoever is in it, one of whom at least asks the head, if there is one."""
        nobody = ForwardLoad(self.scale.layers_for(span), 0, 0, 0, int(span.lm_head), extra_sessions=-1)
        return 2 * self._seconds(nobody) - self._seconds(nobody._replace(head_tokens=2 * nobody.head_tokens))

    def pass_s(self, span: Span) -> float:
        """A pass with one row of one session, whose cache is not read."""
        return self._seconds(ForwardLoad(self.scale.layers_for(span), 1, 1, 0, int(span.lm_head)))

    def per_token_s(self, span: Span) -> float:
        """What one row more adds to it, which does not ask the head."""
        return self._seconds(ForwardLoad(self.scale.layers_for(span), 2, 2, 0, int(span.lm_head))) - self.pass_s(span)

    def marginal_s(self, queued: QueuedRequest) -> float:
        """What the rows that are left of a request add to a batch."""
        if queued.cost_s < 0:
            span, rows, n, cached = queued.span, queued.slice, queued.remaining_tokens, queued.cached_len
            nobody = ForwardLoad(self.scale.layers_for(span), 0, 0, 0, int(span.lm_head))
            asked = 1 + (rows.num_drafts + 1 if rows.rule else 0)
            whole = ForwardLoad(
                nobody.layers, n, (cached + n) * n, cached, asked * nobody.head_tokens, extra_sessions=1
            )
            queued.cost_s = max(0.0, self._seconds(whole) - self._seconds(nobody))
        return queued.cost_s

    def batch_s(self, work: ForwardWork) -> float:
        """Of a batch as it runs, for comparison with what it took."""
        return self._seconds(forward_load(work)._replace(layers=self.scale.layers_for(work.span)))

    def _seconds(self, load: ForwardLoad) -> float:
        """Of a load in layers of the timed model."""
        return self.latency.total_seconds((load,), 1, 1) if self.latency else 0.0


ZERO_ESTIMATOR = Estimator(None)
"""Where nobody knows the chip: everything seems to take no time."""


def forward_load(work: ForwardWork) -> ForwardLoad:
    """One hop for a batch: the head sees the last row and the drafts of who asks for a verdict."""
    span = work.span
    cached = [(rows.start, rows.num_tokens) for rows in work.slices] if span.start_layer < span.end_layer else []
    asked = sum([rows.num_drafts + 1 for rows in work.slices if rows.rule]) if span.lm_head else 0
    return batch_load(span.end_layer - span.start_layer, cached, asked)
