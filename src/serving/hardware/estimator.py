"""How long a batch will take, before it runs: WISP's verification-time estimator (section 4.4), asked by schedulers."""

from dataclasses import dataclass

from serving.core.queued_request import Item
from serving.hardware.latency import Latency, Load, load
from serving.hardware.layer_scaling import WHOLE, Scale
from serving.messages import Forward, Span


@dataclass(frozen=True)
class Estimator:
    """Eq. 19 with the coefficients of a chip, for a model whose layers stand for those of a timed one by `scale`.

    Linear, so that a request adds the same to every batch: feasibility of a grown batch is one addition.
    """

    latency: Latency | None
    scale: Scale = WHOLE

    def constant_s(self, span: Span) -> float:
        """What a batch costs whoever is in it, one of whom at least asks the head, if there is one."""
        nobody = Load(self.scale.of(span), 0, 0, 0, int(span.head), further=-1)
        return 2 * self._seconds(nobody) - self._seconds(nobody._replace(head_rows=2 * nobody.head_rows))

    def step_s(self, span: Span) -> float:
        """A pass with one row of one session, whose cache is not read."""
        return self._seconds(Load(self.scale.of(span), 1, 1, 0, int(span.head)))

    def row_s(self, span: Span) -> float:
        """What one row more adds to it, which does not ask the head."""
        return self._seconds(Load(self.scale.of(span), 2, 2, 0, int(span.head))) - self.step_s(span)

    def share_s(self, item: Item) -> float:
        """What the rows that are left of a request add to a batch."""
        if item.cost_s < 0:
            span, rows, n, cached = item.span, item.rows, item.left, item.cached
            nobody = Load(self.scale.of(span), 0, 0, 0, int(span.head))
            asked = 1 + (rows.check + 1 if rows.rule else 0)
            whole = Load(nobody.layers, n, (cached + n) * n, cached, asked * nobody.head_rows, further=1)
            item.cost_s = max(0.0, self._seconds(whole) - self._seconds(nobody))
        return item.cost_s

    def batch_s(self, work: Forward) -> float:
        """Of a batch as it runs, for comparison with what it took."""
        return self._seconds(forward_load(work)._replace(layers=self.scale.of(work.span)))

    def _seconds(self, load: Load) -> float:
        """Of a load in layers of the timed model."""
        return self.latency.in_all((load,), 1, 1) if self.latency else 0.0


UNKNOWN = Estimator(None)
"""Where nobody knows the chip: everything seems to take no time."""


def forward_load(work: Forward) -> Load:
    """One hop for a batch: the head sees the last row and the drafts of who asks for a verdict."""
    span = work.span
    cached = [(rows.start, rows.n) for rows in work.rows] if span.first < span.last else []
    asked = sum([rows.check + 1 for rows in work.rows if rows.rule]) if span.head else 0
    return load(span.last - span.first, cached, asked)
