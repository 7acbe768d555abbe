"""The order of measured candidates: what keeps the requirements first, then the Pareto front, then the objective."""

from collections.abc import Sequence

from pipeline.answers.front import objective_values, pareto_front
from pipeline.answers.requirements import Requirements
from pipeline.answers.rows import Row

INDIFFERENCE = 0.01
"""Values of the first objective within this share of each other are equal: the second one decides."""


def broken(row: Row, require: Requirements) -> list[tuple[str, float]]:
    """What the row breaks, each with the share by which it does."""
    metrics = row.metrics
    limits = require.limits(with_quality=row.quality is not None)
    found = [(limit.describe(metrics), limit.excess(metrics)) for limit in limits]
    if require.lossless and not row.lossless:
        found.append(("tokens that are not the cloud model's own", 1.0))
    return [(text, excess) for text, excess in found if excess > 0]


def excess(row: Row, require: Requirements) -> float:
    """The sum of the shares by which the row breaks the requirements; 0 for one that keeps them."""
    return sum(share for _, share in broken(row, require))


def is_measured(row: Row, require: Requirements) -> bool:
    """False if the requirements ask for a quality, the row writes a text of its own, and that text was not scored."""
    return require.quality_min is None or row.lossless or row.quality is not None


def ranked(rows: Sequence[Row], require: Requirements, objective: Sequence[str]) -> list[Row]:
    """The rows, best first."""
    left = sorted(rows, key=lambda row: objective_values(row, objective))
    found: list[Row] = []
    for kept in (True, False):
        some = [row for row in left if (excess(row, require) == 0) == kept]
        found += _by_objective(some, objective) if kept else sorted(some, key=lambda row: excess(row, require))
    return found


def _by_objective(rows: Sequence[Row], objective: Sequence[str]) -> list[Row]:
    """The rows by their first objective; among those that are equal there, by the others."""
    found, left = [], list(rows)
    while left:
        least = objective_values(left[0], objective)[0]
        equal = [row for row in left if objective_values(row, objective)[0] <= least * (1 + INDIFFERENCE)]
        first = min(equal, key=lambda row: objective_values(row, objective)[1:])
        found.append(first)
        left.remove(first)
    return found


def promoted(rows: Sequence[Row], require: Requirements, objective: Sequence[str], keep: int) -> list[Row]:
    """The `keep` rows that go on: half of them at most from the Pareto front of those that keep the requirements, the
    others by rank.
    """
    order = ranked(rows, require, objective)
    good = [row for row in order if excess(row, require) == 0]
    front = pareto_front([objective_values(row, objective) for row in good])
    first = [row for row, best in zip(good, front, strict=True) if best][: max(1, keep // 2)]
    return [*first, *(row for row in order if row not in first)][:keep]
