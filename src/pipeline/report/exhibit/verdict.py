"""Whether the numbers support a claim: its interval lies inside what is wanted, outside, or on both sides."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.report.exhibit.estimate import Estimate
from pipeline.report.exhibit.rows import Cell, Shown
from pipeline.report.exhibit.schema import Claim

POINT = "no interval"
Result = Literal["holds", "does not hold", "undecided", "not decided"]


@dataclass(frozen=True)
class Verdict:
    """`difference`: of the row from the other, or from the value. `basis` says what bounds it, or what is missing."""

    claim: Claim
    group: str
    result: Result
    basis: str
    difference: Estimate | None = None
    bounds: tuple[float, float] | None = None


def verdicts(shown: Shown) -> list[Verdict]:
    """Of each claim, in each group in which it is made."""
    return [verdict for claim in shown.exhibit.claims for verdict in _each(shown, claim)]


def _each(shown: Shown, claim: Claim) -> Iterator[Verdict]:
    for group in shown.groups:
        if claim.group in ("", group):
            yield _verdict(shown, claim, group)


def _verdict(shown: Shown, claim: Claim, group: str) -> Verdict:
    own = _cell(shown, claim, group, claim.row)
    other = claim.value if claim.than is None else _cell(shown, claim, group, claim.than)
    missing = [row for row, cell in ((claim.row, own), (claim.than, other)) if not isinstance(cell, Estimate | float)]
    if not isinstance(own, Estimate) or not isinstance(other, Estimate | float):
        return Verdict(claim, group, "not decided", f"no number of {' and '.join(map(repr, missing))}")
    difference = own.minus(other) if isinstance(other, Estimate) else own.less(other)
    if difference is None:
        return Verdict(claim, group, "not decided", "no seed is complete in both rows")
    low, high, basis = _bounds(difference)
    if isinstance(other, Estimate) and own.draws and other.draws and not difference.draws:
        basis = f"not the same prompts: {basis}"
    return Verdict(claim, group, judged(claim, low, high), basis, difference, (low, high))


def _cell(shown: Shown, claim: Claim, group: str, row: str) -> Cell:
    line = shown.line(group, row)
    return shown.ours(line, shown.exhibit.column(claim.metric)) if line else None


def _bounds(difference: Estimate) -> tuple[float, float, str]:
    if interval := difference.interval:
        return interval.low, interval.high, "95 % interval"
    low, high = difference.spread or (difference.value, difference.value)
    return low, high, "seeds alone" if difference.spread else POINT


def judged(claim: Claim, low: float, high: float) -> Result:
    """Of a difference between `low` and `high`."""
    least, most, strict = _wanted(claim)
    if strict:
        inside, outside = low > least and high < most, high <= least or low >= most
    else:
        inside, outside = low >= least and high <= most, high < least or low > most
    return "holds" if inside else "does not hold" if outside else "undecided"


def _wanted(claim: Claim) -> tuple[float, float, bool]:
    """The differences that the claim allows, and whether without their bounds."""
    margin = claim.margin
    return {
        "above": (margin, math.inf, True),
        "below": (-math.inf, -margin, True),
        "at_most": (-math.inf, margin, False),
        "at_least": (-margin, math.inf, False),
        "equal": (-margin, margin, False),
    }[claim.wanted]


def tally(found: Sequence[Verdict]) -> dict[Result, int]:
    """How many there are of each result."""
    results = [verdict.result for verdict in found]
    return {result: results.count(result) for result in dict.fromkeys(results)}
