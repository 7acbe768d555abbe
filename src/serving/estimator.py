"""How long a batch will take, before it runs: WISP's verification-time estimator (section 4.4), asked by schedulers."""

from dataclasses import dataclass

from serving.latency import Latency, Load, load
from serving.messages import Forward, Span
from serving.nodes.item import Item
from serving.scale import WHOLE, Scale


@dataclass(frozen=True)
class Estimator:
    """Eq. 19 with the coefficients of a chip, for a model whose layers stand for those of a timed one by `scale`.

    Linear, so that a request adds the same to every batch: feasibility of a grown batch is one addition.
    """

    latency: Latency | None
    scale: Scale = WHOLE

    def constant_s(self, span: Span) -> float:
        """What a batch costs whoever is in it, one of whom at least asks the head, if there is one."""
        layers = self.scale.of(span)
        if not span.head:
            return self._seconds(Load(layers, 0, 0, 0, further=-1))
        alone_s, asked_s = self._seconds(_asking(layers, 0, -1)), self._seconds(_asking(layers, 1, -1))
        return 2 * alone_s - asked_s

    def share_s(self, item: Item) -> float:
        """What the rows that are left of a request add to a batch."""
        if item.cost_s < 0:
            span, rows, n, cached = item.span, item.rows, item.left, item.cached
            layers = self.scale.of(span)
            if not span.head:
                item.cost_s = self._alone_s(Load(layers, n, (cached + n) * n, cached, further=1), layers)
                return item.cost_s
            asked = rows.check + 1 if rows.rule else 0
            whole = Load(layers, n, (cached + n) * n, cached, 1 + asked, further=1)
            item.cost_s = max(0.0, self._seconds(whole) - self._seconds(_asking(layers, 0, 0)))
        return item.cost_s

    def batch_s(self, work: Forward) -> float:
        """Of a batch as it runs, for comparison with what it took."""
        return self._seconds(forward_load(work)._replace(layers=self.scale.of(work.span)))

    def _alone_s(self, load: Load, layers: float) -> float:
        return max(0.0, self._seconds(load) - self._seconds(Load(layers, 0, 0, 0)))

    def _seconds(self, load: Load) -> float:
        """Of a load in layers of the timed model."""
        return self.latency.in_all((load,), 1, 1) if self.latency else 0.0


def _asking(layers: float, more: int, further: int) -> Load:
    """Nobody's rows, but for one of the head, which has a constant of its own, and some `more`."""
    return Load(layers, 0, 0, 0, 1 + more, further=further)


UNKNOWN = Estimator(None)
"""Where nobody knows the chip: everything seems to take no time."""


def forward_load(work: Forward) -> Load:
    """One hop for a batch: the head sees the last row and the drafts of who asks for a verdict."""
    span = work.span
    cached = [(rows.start, rows.n) for rows in work.rows] if span.first < span.last else []
    asked = sum([rows.check + 1 for rows in work.rows if rows.rule]) if span.head else 0
    return load(span.last - span.first, cached, asked)
