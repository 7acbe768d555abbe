"""What the marks of a table mean."""

from collections.abc import Iterator, Sequence

from pipeline.report.estimate import interval_text
from pipeline.report.export.results import ResultCell, ResultTable
from pipeline.report.export.significance import Judgement
from pipeline.report.statistics import SIGNIFICANCE

DAGGER = "†"
_NAMED_NOTES = frozenset({"baseline", "note", "sample"})
"""The notes of a table that stand below it in print; what differs from a paper is a matter of the text."""


def legend(table: ResultTable, found: Judgement) -> Iterator[tuple[str, str]]:
    """Pairs of mark and meaning, of those marks that the table has; then the table's own notes."""
    bounded = [cell for row in table.rows for cell in row.cells if cell.low is not None]
    if bounded:
        yield "[ ]", _interval_text(bounded)
    if found.best:
        yield "bold", "best of the column" + (" in its group" if len(table.groups) > 1 else "")
    if found.p_values:
        best = "the best" + (" of its group" if len(table.groups) > 1 else "")
        other = best if table.against is None else "its baseline"
        tests = f"{found.num_tests} comparison{'s' if found.num_tests > 1 else ''}"
        marked = any(found.differs(*place) for place in found.p_values)
        yield (
            DAGGER if marked else f"no {DAGGER}",
            f"{'differs' if marked else 'nothing differs'} significantly from {other} (p < {SIGNIFICANCE:g}; paired "
            f"tests, Holm's correction for {tests})",
        )
    yield from (note for note in table.notes if note[0] in _NAMED_NOTES)


def _interval_text(cells: Sequence[ResultCell]) -> str:
    """What the intervals are; how those of written values were made is not known."""
    known = [cell.estimate for cell in cells if cell.estimate]
    return interval_text(known) if known else "95 % interval over seeds and prompts"
