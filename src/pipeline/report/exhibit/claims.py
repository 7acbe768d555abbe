"""Decides claims: a claim holds if its interval lies inside the allowed range, and does not if it lies outside."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.report.estimate import Estimate
from pipeline.report.exhibit.rows import Cell, RenderedExhibit
from pipeline.report.exhibit.schema import Claim
from pipeline.report.statistics import MeanError

NO_INTERVAL = "no interval"
SEEDS_ALONE = "Student's t over seeds"
ClaimStatus = Literal["holds", "does not hold", "inconclusive", "not evaluated"]


@dataclass(frozen=True)
class ClaimResult:
    """`difference` of the row from the baseline or the value; `basis` names what bounds it, or what is missing."""

    claim: Claim
    group: str
    status: ClaimStatus
    basis: str
    difference: Estimate | None = None
    bounds: tuple[float, float] | None = None


def evaluate_claims(shown: RenderedExhibit) -> list[ClaimResult]:
    """The result of each claim in each of its groups."""
    return [
        _claim_result(shown, claim, group)
        for claim in shown.exhibit.claims
        for group in shown.groups
        if claim.group in ("", group)
    ]


def _claim_result(shown: RenderedExhibit, claim: Claim, group: str) -> ClaimResult:
    for place in _places(shown, claim, group):
        if (found := shown.row(*place)) and found.hypothetical:
            return ClaimResult(claim, group, "not evaluated", f"{found.label!r} is hypothetical")
    own = _cell(shown, claim, group, claim.row)
    other = claim.value if claim.baseline is None else _cell(shown, claim, group, claim.baseline)
    if not isinstance(own, Estimate) or not isinstance(other, Estimate | float):
        cells = {claim.row: own, claim.baseline: other}
        missing = [row for row, cell in cells.items() if not isinstance(cell, Estimate | float)]
        return ClaimResult(claim, group, "not evaluated", f"no number of {' and '.join(map(repr, missing))}")
    difference = own.paired_difference(other) if isinstance(other, Estimate) else own.subtract(other)
    if difference is None:
        return ClaimResult(claim, group, "not evaluated", "no seed is complete in both rows")
    low, high, basis = _difference_bounds(difference)
    if isinstance(other, Estimate) and own.resamples and other.resamples and not difference.resamples:
        basis = f"not the same prompts: {basis}"
    return ClaimResult(claim, group, claim_status(claim, low, high), basis, difference, (low, high))


def _places(shown: RenderedExhibit, claim: Claim, group: str) -> list[tuple[str, str]]:
    """(group, row) of what the claim rests on: its rows, and those that its column compares them with."""
    places = [(group, row) for row in (claim.row, claim.baseline) if row is not None]
    for step in shown.exhibit.comparisons(shown.exhibit.column(claim.metric)):
        places += [step.place(*place) for place in places]
    return places


def _cell(shown: RenderedExhibit, claim: Claim, group: str, row: str) -> Cell:
    found = shown.row(group, row)
    return shown.measured_cell(found, shown.exhibit.column(claim.metric)) if found else None


def _difference_bounds(difference: Estimate) -> tuple[float, float, str]:
    if interval := difference.interval:
        return interval.low, interval.high, "95 % interval"
    if difference.seed_range is None:
        return difference.value, difference.value, NO_INTERVAL
    half = MeanError.of(list(difference.values.values()), 0.0).half_width()
    return difference.value - half, difference.value + half, SEEDS_ALONE


def claim_status(claim: Claim, low: float, high: float) -> ClaimStatus:
    """The status of a difference between `low` and `high`."""
    least, most, strict = _allowed_range(claim)
    if strict:
        inside, outside = low > least and high < most, high <= least or low >= most
    else:
        inside, outside = low >= least and high <= most, high < least or low > most
    return "holds" if inside else "does not hold" if outside else "inconclusive"


def _allowed_range(claim: Claim) -> tuple[float, float, bool]:
    """(least, greatest) allowed difference; True if the bounds themselves are not allowed."""
    margin = claim.margin
    return {
        "above": (margin, math.inf, True),
        "below": (-math.inf, -margin, True),
        "at_most": (-math.inf, margin, False),
        "at_least": (-margin, math.inf, False),
        "equal": (-margin, margin, False),
    }[claim.relation]


def count_statuses(found: Sequence[ClaimResult]) -> dict[ClaimStatus, int]:
    """The number of results of each status."""
    return dict(Counter(result.status for result in found))
