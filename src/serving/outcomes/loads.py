"""What work costs, counted as `serving.engine` counts it, without running it."""

from collections.abc import Sequence

from serving.latency import Load, load
from serving.messages import Forward


class DraftLoads:
    """Loads of the passes of a `Generate` on a drafter of `layers` layers, made once and shared by all sessions."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._known: dict[tuple[int, int, int], tuple[Load, ...]] = {}

    def of(self, start: int, fed: int, passes: int, head_rows: int = 1) -> tuple[Load, ...]:
        """`fed` rows behind `start` cached tokens, then one row for each further pass; none where nothing is fed."""
        if head_rows != 1 or not fed:
            return (load(self._layers, [(start, fed)], float(head_rows)),) if fed else ()
        return self._known.get((start, fed, passes)) or self._made(start, fed, passes)

    def _made(self, start: int, fed: int, passes: int) -> tuple[Load, ...]:
        spans = [(start, fed), *((start + fed + i, 1) for i in range(passes - 1))]
        made = self._known[start, fed, passes] = tuple(load(self._layers, [span], 1.0) for span in spans)
        return made


def in_one(loads: Sequence[Load]) -> Load:
    """The sums of forwards of as many layers: the same seconds, but for rounding, in a quarter of the time."""
    _, rows, interactions, cached, head_rows, forwards = map(sum, zip(*loads, strict=True))
    return Load(loads[0].layers, rows, interactions, cached, head_rows, int(forwards))


def forward_load(work: Forward) -> Load:
    """One hop for a batch: the head sees the last row and the drafts of who asks for a verdict."""
    span = work.span
    cached = [(rows.start, rows.n) for rows in work.rows] if span.first < span.last else []
    asked = sum([rows.check + 1 for rows in work.rows if rows.rule]) if span.head else 0
    return load(span.last - span.first, cached, asked)
