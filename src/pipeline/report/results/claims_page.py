"""Writes docs/claims.md: every claim of the papers with its verdict, our claims beside them, and those on real text."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pipeline.report.results.kept import KeptResult
from pipeline.report.results.pages import basis_line, escaped
from pipeline.report.results.verdicts import (
    REASONS,
    VERDICTS,
    ClaimTest,
    PaperClaim,
    claim_key,
    count_not_drawn,
    count_reasons,
    count_verdicts,
)
from pipeline.report.statistics import SIGNIFICANCE
from pipeline.report.table import shared_decimals

CLAIMS_PAGE = "claims.md"
PAPERS = {
    "synera": "Synera",
    "wisp": "WISP",
    "hat": "HAT",
    "hyperion": "Hyperion",
    "token_routing": "Token-level routing (CITER, Co-LLM)",
}
"""Folder of conf/experiment -> the paper's name."""
REAL_TEXT = "real"
"""The folder of experiments on real language models."""
_TITLES = {
    "synera": "Synera: Synergistic LLM Serving across Device and Cloud at Scale",
    "wisp": "WISP: Waste- and Interference-Suppressed Distributed Speculative LLM Serving at the Edge via Dynamic "
    "Drafting and SLO-Aware Batching",
    "hat": "A Novel Hat-Shaped Device-Cloud Collaborative Inference Framework for Large Language Models",
    "hyperion": "Hyperion: Hierarchical Scheduling for Parallel LLM Acceleration in Multi-tier Networks",
    "token_routing": "Token Level Routing Inference System for Edge Devices",
}
_MOST_GROUPS_SHOWN = 3
_RELATIVE = re.compile(r"\bof ([^,]+)")
"""What a column is relative to: `TBT of edge, %`."""
_CLAIMS_HEAD = """\
# Claims of the five papers, and what holds here

Written by `python -m pipeline results write` from docs/results; do not edit.

{number} claims: {counts}.

- **ours**: the row's value minus its baseline's, with a sign; or its own value where the claim is about a number. In
  the unit of its exhibit's column, which the docs page of the paper shows. With its 95 % interval of 2,000 bootstrap
  resamples, of seeds first, then of prompts; rows that served the same prompts are paired. Where several
  seeds differ, their part of it is Student's t, because the spread of three seeds may be small by chance.
- **asked**: what ours must be to agree with the claim: `below`, `at most 0.2` beyond it, `within 0.1` of it. These
  margins follow one rule ([decisions.md](decisions.md)) and were fixed before the run, in conf/experiment. *Declared
  later*: by the same rule, but when an earlier result of the experiment was known; its seeds may be the same.
- **verdict**: *holds* or *does not hold* (with the side on which ours lies, where a number is claimed; an effect that
  is larger than claimed does not hold either) at p < {significance} after Holm's correction over all tests of this
  page. *Depends*: it holds in some groups and not in others. *Holds in part*: it holds in some, the others are
  undecided or not run. What cannot be resampled, such as a percentile, has Student's t over its seeds; one value
  without an interval decides alone.
- ***undecided*** names its reason. *interval*: p is 0.05 or more before any correction. *Holm*: it is less, but many
  tests were made. *within the margin*: there is no interval, and the value is at the margin. *clock*: the clock's error
  turns the verdict in more than 5 % of its draws. *clock not drawn*: the values decide, but they are times, loads,
  costs or joules by a chip model whose error was not drawn for this claim, be the difference as large as it may.
  *batches unmeasured*: a capacity rests on batches that were never measured on that chip. Here, where a claim may
  have several: {reasons}.
- **clock**: the share of 200 draws of the clock, from its held-out errors, in which the claim holds
  ([clock.md](clock.md)). A claim rests on the clock if a chip model times it and its metric changes with how long chips
  take. What tokens, texts and bytes alone decide does not; nor does what was measured on this machine, or timed by
  coefficients that a paper prints. Drawn for {drawn} claims. {waiting_for_draws}{former_draws}
- *One seed*: nothing was repeated that a seed changes. *One profile*: this machine was measured once.
{beside}"""
_BESIDE = """\
- ***ours beside them***: claims of ours on the same rows, by other measures than the papers': service time a token
  beside TBT, ROUGE-1 beside exact match, the price of busy chips beside c = T W / Pf; and what the papers leave open.
  {number} claims: {counts}.
  Holm's correction is over these alone. {waiting_for_draws}
"""

Waiting = Mapping[str, Mapping[str, str]]
"""Experiment without a kept result -> its claims, with what is reported."""
FormerDraws = Mapping[str, Collection[str]]
"""Experiment -> the claims (`claim_key`) that were drawn by a former rule of the clock's errors."""


def claims_page(
    claims: Sequence[PaperClaim],
    results: Mapping[str, KeptResult],
    waiting: Waiting,
    on_real_text: Sequence[PaperClaim] = (),
    beside: Sequence[PaperClaim] = (),
    former: FormerDraws = MappingProxyType({}),
) -> str:
    """docs/claims.md. Two more families are ours: `on_real_text`, on pairs of real language models, and `beside`, on
    the papers' exhibits.
    """
    of_former_rule = _former_draws([*claims, *on_real_text, *beside], former)
    lines = [_claims_head(claims, waiting, beside, of_former_rule), *_summary_lines(claims, waiting)]
    lines += _headline_lines(claims, beside)
    lines += _real_text_lines(on_real_text, results)
    for folder, title in PAPERS.items():
        own, ours, absent = _of_paper(claims, folder), _of_paper(beside, folder), _of_folder(waiting, folder)
        if own or ours or absent:
            lines += [f"## {title}", "", f"*{_TITLES[folder]}.*", "", *_paper_lines(own, ours, results)]
            lines += _waiting_lines(absent)
    return "\n".join(lines).rstrip() + "\n"


def _claims_head(
    claims: Sequence[PaperClaim], waiting: Waiting, beside: Sequence[PaperClaim], former_draws: str
) -> str:
    return _CLAIMS_HEAD.format(
        number=len(claims) + sum(map(len, waiting.values())),
        counts=", ".join(f"{number} {verdict}" for verdict, number in _all_counts(claims, waiting).items()),
        reasons=", ".join(f"{number} {reason}" for reason, number in count_reasons(claims)) or "none",
        waiting_for_draws=_waiting_for_draws(claims, "  "),
        former_draws=former_draws,
        drawn=sum(any(test.clock_share is not None for test in claim.tests) for claim in claims),
        significance=SIGNIFICANCE,
        beside=_BESIDE.format(
            number=len(beside), counts=_counted(beside), waiting_for_draws=_waiting_for_draws(beside, "  ")
        ) if beside else "",
    )  # fmt: skip


def _counted(claims: Sequence[PaperClaim]) -> str:
    return ", ".join(f"{number} {verdict}" for verdict, number in count_verdicts(claims))


def _waiting_for_draws(claims: Sequence[PaperClaim], indent: str = "") -> str:
    num_tests, num_claims = count_not_drawn(claims)
    if not num_tests:
        return "None of them waits for draws."
    decided = f"{num_tests} tests of {num_claims} claims are decided by their"
    return f"{decided}\n{indent}values and wait for draws (`+draws=clock`)."


def _former_draws(claims: Sequence[PaperClaim], former: FormerDraws) -> str:
    """A sentence that begins a line, or nothing."""
    found = [claim.experiment for claim in claims if _rests_on(claim, former.get(claim.experiment, ()))]
    if not found:
        return ""
    names = ", ".join(sorted(set(found)))
    number = "1 claim rests" if len(found) == 1 else f"{len(found)} claims rest"
    return f"\n  {number} on draws of a former rule ([clock.md](clock.md#draws)): {names}."


def _rests_on(claim: PaperClaim, drawn: Collection[str]) -> bool:
    """True if a test of the claim has its share of the clock from these draws."""
    shared = [test for test in claim.tests if test.clock_share is not None]
    return any(claim_key({**claim.node, "group": test.group}) in drawn for test in shared)


def _of_paper(claims: Sequence[PaperClaim], folder: str) -> list[PaperClaim]:
    return [claim for claim in claims if claim.experiment.startswith(f"{folder}/")]


def _of_folder(waiting: Waiting, folder: str) -> Waiting:
    return {name: absent for name, absent in waiting.items() if name.startswith(f"{folder}/")}


def _all_counts(claims: Sequence[PaperClaim], waiting: Waiting) -> dict[str, int]:
    """The number of claims of each verdict that occurs; those of experiments without a result are not run."""
    counts: dict[str, int] = dict(count_verdicts(claims))
    if absent := sum(map(len, waiting.values())):
        counts["not run"] = counts.get("not run", 0) + absent
    return counts


def _summary_lines(claims: Sequence[PaperClaim], waiting: Waiting) -> Iterator[str]:
    """The number of claims of each paper by verdict."""
    yield f"| | {' | '.join(VERDICTS)} |"
    yield "|---|" + "---:|" * len(VERDICTS)
    for folder, title in PAPERS.items():
        counts = _all_counts(_of_paper(claims, folder), _of_folder(waiting, folder))
        yield f"| {title} | {' | '.join(str(counts.get(verdict, 0)) for verdict in VERDICTS)} |"
    yield ""


def _headline_lines(claims: Sequence[PaperClaim], beside: Sequence[PaperClaim]) -> Iterator[str]:
    headlines = [claim for claim in claims if claim.node.get("headline")]
    if headlines:
        yield from (
            "## Headlines",
            "",
            "What abstracts and conclusions claim, and ours about the same rows. Each stands again below.",
            "",
        )
        yield from (f"| paper | {' | '.join(_CLAIM_COLUMNS)} |", "|---|" + "---|" * len(_CLAIM_COLUMNS))
        for claim in headlines:
            paper = PAPERS[claim.experiment.partition("/")[0]].partition(" (")[0]
            for name, one in ((paper, claim), *(("ours", one) for one in beside if _is_beside(one, claim))):
                yield f"| {name} | {' | '.join(map(escaped, _claim_cells(one)))} |"
        yield ""


def _is_beside(ours: PaperClaim, claim: PaperClaim) -> bool:
    """True if both set the same row beside the same one: their baseline, or what their column is relative to."""
    return ours.experiment == claim.experiment and None is not _compared(ours.node) == _compared(claim.node)


def _compared(node: Mapping[str, Any]) -> tuple[str, str] | None:
    """The row of a claim and what it is compared with; None for a number by itself."""
    relative = _RELATIVE.search(node["metric"])
    other = node.get("baseline") or (relative and relative[1])
    return (node["row"], other) if other else None


_CLAIM_COLUMNS = ("claim", "reported", "asked", "ours", "clock", "verdict")
_OUR_COLUMNS = tuple(column for column in _CLAIM_COLUMNS if column != "reported")


def _claim_cells(claim: PaperClaim) -> tuple[str, ...]:
    statement = claim.statement.removeprefix("ours: ")
    return statement, claim.reported, _asked(claim.node), _ours(claim), _clock(claim), _verdict(claim)


def _asked(node: Mapping[str, Any]) -> str:
    """What ours must be, with the claim's margin: `below`, `at most 0.2`, `within 0.1`."""
    relation, margin = str(node["relation"]), float(node.get("margin") or 0.0)
    if relation == "equal":
        return f"within {margin:g}"
    return f"{relation.replace('_', ' ')} {margin:g}" if margin else relation.replace("_", " ")


def _paper_lines(
    claims: Sequence[PaperClaim], beside: Sequence[PaperClaim], results: Mapping[str, KeptResult]
) -> Iterator[str]:
    """Each exhibit's claims and ours beside them, with what decides them and what they rest on."""
    for name in (name for name in results if any(claim.experiment == name for claim in (*claims, *beside))):
        yield from (f"### {results[name].exhibit['title']}", "")
        if own := [claim for claim in claims if claim.experiment == name]:
            yield from (*_table(own, _CLAIM_COLUMNS), "")
        if ours := [claim for claim in beside if claim.experiment == name]:
            yield from ("Ours beside them:" if own else "Ours:", "", *_table(ours, _OUR_COLUMNS), "")
        yield from _basis_lines(results[name])


def _table(claims: Sequence[PaperClaim], columns: Sequence[str]) -> Iterator[str]:
    yield from (f"| {' | '.join(columns)} |", "|" + "---|" * len(columns))
    for claim in claims:
        cells = dict(zip(_CLAIM_COLUMNS, _claim_cells(claim), strict=True))
        yield f"| {' | '.join(escaped(cells[column]) for column in columns)} |"


def _basis_lines(result: KeptResult) -> Iterator[str]:
    decided = "; ".join(result.exhibit.get("assumptions", ()))
    yield from (*([f"Decided by: {decided}."] if decided else []), basis_line(result), "")


_REAL_TEXT_HEAD = """\
## The papers' questions on real text

What the papers claim is decided below on models of 0.2 to 6 million parameters, or by arithmetic. Here the same
questions are put to a language model, SmolLM2-135M-Instruct and 15 to 24 of its 30 layers, and to real prompts
([real_models.md](real_models.md) says which of the conclusions stand). The statements are ours, written before the
runs. {number} claims: {counts}.
Holm's correction is over these alone. {waiting_for_draws}
"""


def _real_text_lines(claims: Sequence[PaperClaim], results: Mapping[str, KeptResult]) -> Iterator[str]:
    if not claims:
        return
    yield _REAL_TEXT_HEAD.format(
        number=len(claims), counts=_counted(claims), waiting_for_draws=_waiting_for_draws(claims)
    )
    for name in dict.fromkeys(claim.experiment for claim in claims):
        yield from (f"### {results[name].exhibit['title']}", "")
        yield from (*_table([one for one in claims if one.experiment == name], _OUR_COLUMNS), "")
        yield from _basis_lines(results[name])


def _ours(claim: PaperClaim) -> str:
    """Each group's difference where they are few, else their range; a row's own value if that is what is claimed."""
    known = [test for test in claim.tests if test.difference is not None]
    if not known:
        return "-"
    value = claim.node.get("value")
    if len(known) > _MOST_GROUPS_SHOWN:
        found = sorted(test.difference + (value or 0.0) for test in known if test.difference is not None)
        return f"{_number(found[0], found, value)} to {_number(found[-1], found, value)} in {len(known)} groups"
    return "; ".join(
        f"{test.group}: {_interval(test, value)}" if test.group else _interval(test, value) for test in known
    )


def _interval(test: ClaimTest, value: float | None) -> str:
    known = [one + (value or 0.0) for one in (test.difference, test.low, test.high) if one is not None]
    own, *bounds = (_number(one, known, value) for one in known)
    return f"{own} (no interval)" if test.p_value is None or not bounds else f"{own} [{', '.join(bounds)}]"


def _number(number: float, among: Sequence[float], value: float | None) -> str:
    """Signed if it is a difference from another row: a claim about a `value` shows the row's own number."""
    sign = "+" if value is None else ""
    return f"{number:{sign},.{shared_decimals(list(among))}f}"


def _clock(claim: PaperClaim) -> str:
    shares = [test.clock_share for test in claim.tests if test.clock_share is not None]
    return "-" if not shares else " to ".join(dict.fromkeys(f"{100 * one:.0f} %" for one in (min(shares), max(shares))))


def _verdict(claim: PaperClaim) -> str:
    """The verdict; where it differs by group, that of each, the largest number of groups last and by their number."""
    found = {verdict: [test for test in claim.tests if test.verdict == verdict] for verdict in VERDICTS}
    parts = sorted((tests for tests in found.values() if tests), key=len)
    if len(parts) > 1:
        by_group = "; ".join(_of_groups(claim, tests) for tests in parts)
        return f"**{claim.verdict}**{_not_repeated(claim)}{_later(claim)}: {by_group}"
    return f"**{claim.verdict}**{_why(claim, claim.tests)}{_not_repeated(claim)}{_later(claim)}"


def _later(claim: PaperClaim) -> str:
    return ", declared later" if any(test.is_later for test in claim.tests) else ""


def _not_repeated(claim: PaperClaim) -> str:
    """` (one seed)` or ` (one profile)` where another run could differ and was not made."""
    repeats = claim.tests[0].repeats
    if claim.verdict == "not run" or repeats == "none" or min(test.num_seeds for test in claim.tests) > 1:
        return ""
    return f" ({'one seed' if repeats == 'seeds' else repeats})"


def _of_groups(claim: PaperClaim, tests: Sequence[ClaimTest]) -> str:
    """`holds for g, h`: the groups of one verdict, where they are few."""
    named = ", ".join(test.group for test in tests) if len(tests) <= _MOST_GROUPS_SHOWN else f"{len(tests)} groups"
    return f"{tests[0].verdict}{_why(claim, tests)} for {named}"


def _why(claim: PaperClaim, tests: Sequence[ClaimTest]) -> str:
    """` (Holm)` where the tests are undecided; ` (above)` where they are beyond a claimed number."""
    if tests[0].verdict == "does not hold" and claim.node["relation"] == "equal":
        return f" ({'/'.join(dict.fromkeys('above' if (test.difference or 0) > 0 else 'below' for test in tests))})"
    reasons = [reason for reason in REASONS if any(test.reason == reason for test in tests)]
    return f" ({', '.join(reasons)})" if reasons else ""


def _waiting_lines(waiting: Waiting) -> Iterator[str]:
    """The claims that were not run, with the command that would."""
    for name, claims in waiting.items():
        yield from (f"### Not run on today's clock: `python -m pipeline +experiment={name}`", "")
        yield from ("| claim | reported |", "|---|---|")
        yield from (f"| {escaped(statement)} | {escaped(reported)} |" for statement, reported in claims.items())
        yield ""
