"""Decides the papers' claims over all kept results together.

Every claim in every group is one test: the distance of its difference from what is allowed, beside the bootstrap's
standard error. What differs between seeds is Student's t, because the spread of three seeds may be small by chance. The
p-values of a family of claims, those of the papers or ours on real text, are adjusted by Holm's method. The margins
stand in the experiments' files.
What rests on the clock of a chip model is decided only where the clock was drawn.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pipeline.report.results.basis import Basis, Repeats
from pipeline.report.results.kept import LATER, KeptResult
from pipeline.report.statistics import SIGNIFICANCE, MeanError, holm

Verdict = Literal["holds", "holds in part", "depends", "undecided", "does not hold", "not run"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Reason = Literal["", "interval", "Holm", "clock", "clock not drawn", "batches unmeasured", "within the margin"]
"""Why a test is undecided."""
REASONS: tuple[Reason, ...] = get_args(Reason)[1:]
DRAWS_NEEDED = 0.95
"""The share of the clock's draws in which a claim must hold."""


@dataclass(frozen=True)
class ClaimTest:
    """A claim in one group. `p_value` None: there is one value without an interval, and it alone decides.

    p_value        adjusted over its family
    num_seeds      of the row
    clock_share    share of the clock's draws in which the claim holds; None if it was not drawn, or rests on no clock
    repeats        what could differ in another run, where there is one seed
    reason         why the test is undecided; empty if it is decided
    is_later       True if it was declared when an earlier result of its experiment was known
    """

    group: str
    verdict: Verdict
    difference: float | None
    low: float | None
    high: float | None
    p_value: float | None
    num_seeds: int = 1
    clock_share: float | None = None
    reason: Reason = ""
    repeats: Repeats = "seeds"
    is_later: bool = False


@dataclass(frozen=True)
class PaperClaim:
    """A claim of a paper, or one of ours, in all groups that it is about.

    reported    empty for one of ours
    """

    experiment: str
    statement: str
    reported: str
    node: Mapping[str, Any]
    tests: tuple[ClaimTest, ...]

    @property
    def verdict(self) -> Verdict:
        """That of all groups. It depends if it holds in one and not in another, and holds in part if the others are
        undecided or not run; where it holds in none it does not hold if it does not in one, else it is undecided.
        """
        found = {test.verdict for test in self.tests}
        if len(found) == 1:
            return next(iter(found))
        if "holds" in found:
            return "depends" if "does not hold" in found else "holds in part"
        return "does not hold" if "does not hold" in found else "undecided"

    def groups(self, verdict: Verdict) -> list[str]:
        return [test.group for test in self.tests if test.verdict == verdict]


@dataclass(frozen=True)
class _Sides:
    """One-sided p-values of a claim: that it does not hold (`against`), and that it does (`in_favour`)."""

    against: float
    in_favour: float

    @property
    def two_sided(self) -> float:
        return min(1.0, 2 * min(self.against, self.in_favour))


def decide(
    results: Sequence[KeptResult], draws: Mapping[str, Mapping[str, float]], *, ours: bool = False
) -> list[PaperClaim]:
    """Every claim with a reported value, or with `ours` every claim without one, in the order of the results.

    draws    experiment -> claim's key (`claim_key`) -> share of the clock's draws in which it holds
    """
    bases = {result.experiment: Basis.of(result) for result in results}
    claims = [(result, node) for result in results for node in result.exhibit.get("claims", ())]
    nodes = [(result, node) for result, node in claims if bool(node.get("reported")) != ours]
    sides = [_sides(result, node) for result, node in nodes]
    tested = [place for place, own in enumerate(sides) if own is not None]
    adjusted = dict(zip(tested, holm([_two_sided(sides[place]) for place in tested]), strict=True))
    found: dict[tuple[str, ...], list[tuple[Mapping[str, Any], ClaimTest]]] = {}
    for place, (result, node) in enumerate(nodes):
        evidence = _Evidence(sides[place], adjusted.get(place), draws.get(result.experiment, {}).get(claim_key(node)))
        test = _test(result, node, evidence, bases[result.experiment])
        found.setdefault((result.experiment, *_asked(node)), []).append((node, test))
    return [
        PaperClaim(experiment, statement, own[0][0].get("reported", ""), own[0][0], tuple(test for _, test in own))
        for (experiment, statement, *_), own in found.items()
    ]


def claim_key(node: Mapping[str, Any]) -> str:
    """The name of a claim in its group, within its exhibit, and what it asks: another margin is another claim."""
    names = [str(node.get(key) or "") for key in ("group", "statement", "row", "baseline", "metric", "relation")]
    return " / ".join([*names, *(f"{node.get(key) or 0:.4g}" for key in ("margin", "value"))])


def _asked(node: Mapping[str, Any]) -> tuple[str, ...]:
    """What a claim asks in every group, the statement first: another number in another group is another claim."""
    keys = ("statement", "row", "baseline", "metric", "relation", "margin", "value", "reported")
    return tuple(str(node.get(key)) for key in keys)


def _two_sided(sides: _Sides | None) -> float:
    assert sides is not None
    return sides.two_sided


@dataclass(frozen=True)
class _Evidence:
    """`p_value` is adjusted over the family; `share` is of the clock's draws. None: there is none."""

    sides: _Sides | None
    p_value: float | None
    share: float | None


def _test(result: KeptResult, node: Mapping[str, Any], evidence: _Evidence, basis: Basis) -> ClaimTest:
    low, high = _bounds(result, node)
    on_clock = basis.rests_on_clock(node)
    verdict, reason = _verdict(node, evidence, on_clock=on_clock)
    if verdict != "not run" and basis.lacks_batches(node):
        verdict, reason = "undecided", "batches unmeasured"
    share = evidence.share if on_clock else None
    return ClaimTest(
        node.get("group", ""), verdict, node.get("difference"), low, high, evidence.p_value, _num_seeds(result, node),
        share, reason, basis.declared.repeats, bool(node.get(LATER)),
    )  # fmt: skip


def _verdict(node: Mapping[str, Any], evidence: _Evidence, *, on_clock: bool) -> tuple[Verdict, Reason]:
    if node["status"] == "not evaluated":
        return "not run", ""
    found, reason = _verdict_of_values(node, evidence.sides, evidence.p_value)
    if found == "undecided" or not on_clock:
        return found, reason
    if evidence.share is None:
        return "undecided", "clock not drawn"
    return (found, reason) if _is_sure(found, evidence.share) else ("undecided", "clock")


def _verdict_of_values(node: Mapping[str, Any], sides: _Sides | None, p_value: float | None) -> tuple[Verdict, Reason]:
    if sides is None or p_value is None:
        status = node["status"]
        return (status, "") if status in ("holds", "does not hold") else ("undecided", "within the margin")
    if p_value >= SIGNIFICANCE:
        return "undecided", "Holm" if sides.two_sided < SIGNIFICANCE else "interval"
    return ("holds" if sides.against < sides.in_favour else "does not hold"), ""


def _is_sure(verdict: Verdict, share: float) -> bool:
    """True if the clock's error does not turn the verdict in more than 5 % of its draws."""
    return share >= DRAWS_NEEDED if verdict == "holds" else share <= 1 - DRAWS_NEEDED


def _num_seeds(result: KeptResult, node: Mapping[str, Any]) -> int:
    cells = [column.get("measured") for column in _columns(result, node, node["row"]).values()]
    return max((len(cell.get("by_replicate", ())) for cell in cells if isinstance(cell, dict)), default=1)


def _columns(result: KeptResult, node: Mapping[str, Any], row: str | None) -> Mapping[str, Any]:
    """The columns of a row of the claim's group; none if there is no such row."""
    rows = result.exhibit["rows"]
    found = (each for each in rows if each.get("group", "") == node.get("group", "") and each["row"] == row)
    return next((each["columns"] for each in found), {})


def _by_seed(result: KeptResult, node: Mapping[str, Any], row: str | None) -> Mapping[str, float]:
    """The claim's metric in each seed of a row; empty where it is no column, or has one number."""
    cell = _columns(result, node, row).get(node["metric"], {}).get("measured")
    return cell.get("by_replicate", {}) if isinstance(cell, dict) else {}


def _mean_error(result: KeptResult, node: Mapping[str, Any]) -> MeanError | None:
    """That of the claim's difference; None for one value without a standard error. What cannot be resampled, such as a
    percentile, has what its seeds differ by.
    """
    error, values = node.get("standard_error"), _differences(result, node)
    if node.get("difference") is None or (error is None and len(values) < 2):
        return None
    return MeanError.of(values, error or 0.0)


def _differences(result: KeptResult, node: Mapping[str, Any]) -> list[float]:
    """The claim's difference in each seed; the row's own value where it has no baseline."""
    own = _by_seed(result, node, node["row"])
    if node.get("baseline") is None:
        return list(own.values())
    other = _by_seed(result, node, node["baseline"])
    return [value - other[seed] for seed, value in own.items() if seed in other]


def _bounds(result: KeptResult, node: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The 95 % interval of the difference; by Student's t where several seeds differ."""
    error = _mean_error(result, node)
    if error is None or not error.seeds:
        return node.get("low"), node.get("high")
    half = error.half_width()
    return node["difference"] - half, node["difference"] + half


def _sides(result: KeptResult, node: Mapping[str, Any]) -> _Sides | None:
    """None for one value without a standard error."""
    error = _mean_error(result, node)
    if error is None:
        return None
    if not error.seeds and not error.prompts:
        return {"holds": _Sides(0.0, 1.0), "does not hold": _Sides(1.0, 0.0)}.get(node["status"], _Sides(0.5, 0.5))
    margin = node.get("margin", 0.0)
    above = {bound: error.chance_above(bound - node["difference"]) for bound in (margin, -margin)}
    """The probability that the true difference is above the bound."""
    relation = node["relation"]
    if relation == "equal":  # two one-sided tests
        return _Sides(max(1 - above[-margin], above[margin]), min(above[-margin], 1 - above[margin]))
    bound = margin if relation in ("above", "at_most") else -margin
    if relation in ("above", "at_least"):
        return _Sides(1 - above[bound], above[bound])
    return _Sides(above[bound], 1 - above[bound])


def count_not_drawn(claims: Sequence[PaperClaim]) -> tuple[int, int]:
    """The tests that their values would decide, had the clock been drawn, and the number of claims that have one."""
    found = [sum(test.reason == "clock not drawn" for test in claim.tests) for claim in claims]
    return sum(found), sum(map(bool, found))


def count_reasons(claims: Sequence[PaperClaim]) -> Iterator[tuple[Reason, int]]:
    """The reasons why tests of undecided claims are so, with the number of claims that have one of them."""
    undecided = [{test.reason for test in claim.tests} for claim in claims if claim.verdict == "undecided"]
    for reason in REASONS:
        number = sum(reason in found for found in undecided)
        if number:
            yield reason, number


def count_verdicts(claims: Sequence[PaperClaim]) -> Iterator[tuple[Verdict, int]]:
    """The verdicts that occur, with their number."""
    for verdict in VERDICTS:
        number = sum(claim.verdict == verdict for claim in claims)
        if number:
            yield verdict, number
