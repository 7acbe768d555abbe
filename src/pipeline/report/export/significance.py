"""What a table says of its rows: which is the best of its group, and which differ significantly from it or a baseline.

Two cells of single runs are compared by the paired permutation test over their prompts. Cells of several seeds, and all
cells of a table of more than `MAX_PERMUTED` comparisons, are compared by Student's t of the paired bootstrap's
standard error, which covers seeds and prompts, as claims are (`pipeline.report.results.verdicts`): the permutations
cannot show the small p-values that Holm's correction asks for there. With n pairs no p-value is below 2 / 2^n. All
p-values of a table are adjusted together by Holm's method.

The best row is chosen by the same numbers, so that a comparison with it counts as one of all pairs of its group: pairs
that were not tested take part with a p-value of 1, which can only raise the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from pipeline.report.export.results import ResultCell, ResultTable
from pipeline.report.statistics import BOOTSTRAP_SEED, SIGNIFICANCE, holm, paired_p_values

MAX_PERMUTED = 200
"""Comparisons of a table up to which 9,999 permutations can show a significant one."""

Place = tuple[int, int]
"""(row, column)."""


@dataclass(frozen=True)
class Judgement:
    """The best cells, and the adjusted p-value of each tested one.

    num_tests    how many comparisons the p-values are adjusted for
    """

    best: frozenset[Place] = frozenset()
    p_values: Mapping[Place, float] = field(default_factory=dict)
    num_tests: int = 0

    def differs(self, row: int, column: int) -> bool:
        """True if the cell differs significantly from its baseline or from the best of its group."""
        return self.p_values.get((row, column), 1.0) < SIGNIFICANCE


@dataclass(frozen=True)
class _Comparison:
    place: Place
    own: ResultCell
    other: ResultCell


def judge(table: ResultTable) -> Judgement:
    """The best of each column and group, and the tests of the table."""
    best = {place: row for row, place in _best_cells(table)}
    found = list(_against_best(table, best) if table.against is None else _against_baselines(table, table.against))
    pairs = sum(_num_pairs(table, column) for column in _ranked(table)) if table.against is None else 0
    total = max(len(found), pairs)
    tested = _p_values(found, permuted=total <= MAX_PERMUTED)
    padded = [*tested.values(), *[1.0] * (total - len(tested))]
    adjusted = holm(padded)[: len(tested)]
    return Judgement(frozenset(best), dict(zip(tested, adjusted, strict=True)), total)


def _ranked(table: ResultTable) -> list[int]:
    return [place for place, column in enumerate(table.columns) if column.better]


def _best_cells(table: ResultTable) -> Iterator[tuple[int, Place]]:
    """(a best row of the group, each best cell): values that are printed alike are equally good; none if all are."""
    for column in _ranked(table):
        for group in table.groups:
            known = {row: table.rows[row].cells[column] for row in table.places(group)}
            values = {row: cell.value for row, cell in known.items() if cell.value is not None}
            texts = {row: known[row].format_value() for row in values}
            if len(set(texts.values())) < 2:
                continue
            best = (max if table.columns[column].better == "higher" else min)(values.values())
            winner = next(row for row, value in values.items() if value == best)
            yield from ((winner, (row, column)) for row, text in texts.items() if text == texts[winner])


def _against_best(table: ResultTable, best: Mapping[Place, int]) -> Iterator[_Comparison]:
    """Every cell that is not the best with the best of its column and group."""
    winners = {(table.rows[row].group, column): winner for (row, column), winner in best.items()}
    for (group, column), winner in winners.items():
        for row in table.places(group):
            own, other = (table.rows[place].cells[column] for place in (row, winner))
            if (row, column) not in best and _pair(own, other):
                yield _Comparison((row, column), own, other)


def _against_baselines(table: ResultTable, against: Mapping[int, int]) -> Iterator[_Comparison]:
    for row, other in against.items():
        for column in range(len(table.columns)):
            cells = [table.rows[place].cells for place in (row, other)]
            if all(cells) and _pair(cells[0][column], cells[1][column]):
                yield _Comparison((row, column), cells[0][column], cells[1][column])


def _num_pairs(table: ResultTable, column: int) -> int:
    """The pairs of a column that have a test, in all groups."""
    found = 0
    for group in table.groups:
        alike: dict[tuple[Any, ...], list[ResultCell]] = {}
        for row in table.places(group):
            cell = table.rows[row].cells[column]
            alike.setdefault(_signature(cell), []).append(cell)
        kinds = list(alike.values())
        found += sum(len(own) * (len(own) - 1) // 2 for own in kinds if _pair(own[0], own[0]))
        found += sum(len(one) * len(other) for one, other in combinations(kinds, 2) if _pair(one[0], other[0]))
    return found


def _signature(cell: ResultCell) -> tuple[Any, ...]:
    """What `_pair` looks at."""
    sums = cell.sums.prompts if cell.sums else None
    if cell.estimate is None:
        return (sums,)
    return sums, tuple(cell.estimate.values), *((key, one.prompts) for key, one in cell.estimate.resamples.items())


def _pair(one: ResultCell, other: ResultCell) -> bool:
    """True if the two rest on the same prompts and seeds."""
    if one.sums and other.sums:
        return one.sums.prompts == other.sums.prompts
    if one.estimate is None or other.estimate is None or not one.estimate.resamples or not other.estimate.resamples:
        return False
    mine, its = one.estimate.resamples, other.estimate.resamples
    common = [seed for seed in one.estimate.values if seed in other.estimate.values]
    return bool(common) and all(
        seed in mine and seed in its and mine[seed].prompts == its[seed].prompts for seed in common
    )


def _p_values(found: Sequence[_Comparison], *, permuted: bool) -> dict[Place, float]:
    tests = {
        one.place: one.own.sums.paired_with(one.other.sums)
        for one in found
        if permuted and one.own.sums and one.other.sums
    }
    known = dict(zip(tests, paired_p_values(list(tests.values()), seed=BOOTSTRAP_SEED), strict=True))
    return {
        one.place: known[one.place] if one.place in known else _student_p_value(one.own, one.other) for one in found
    }


def _student_p_value(own: ResultCell, other: ResultCell) -> float:
    assert own.estimate is not None
    assert other.estimate is not None
    difference = own.estimate.paired_difference(other.estimate)
    if difference is None or difference.mean_error is None or _is_rounding(difference.value, own, other):
        return 1.0
    pairs = sum(len(draws.prompts) for draws in difference.resamples.values())
    tails = 2 * difference.mean_error.chance_above(abs(difference.value))
    return min(1.0, max(tails, 2.0 ** (1 - min(pairs, 1000))))


def _is_rounding(difference: float, own: ResultCell, other: ResultCell) -> bool:
    """True if the values are equal but for the rounding of their sums."""
    return abs(difference) <= 1e-12 * (abs(own.value or 0.0) + abs(other.value or 0.0))
