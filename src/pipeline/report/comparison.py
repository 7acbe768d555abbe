"""Compares the jobs of a sweep: their choices, their metrics, the best of them, and differences from a baseline."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from pipeline.artifacts import fingerprint, manifest
from pipeline.report import job_result
from pipeline.report.choices import differing_overrides, matches, nearest
from pipeline.report.estimate import estimate
from pipeline.report.figures import TradeoffPoint
from pipeline.report.job_result import JobResult
from pipeline.report.prompt_sums import PromptSums, prompt_sums, requests_by_prompt
from pipeline.report.served_dataset import served_dataset
from pipeline.report.statistics import BOOTSTRAP_SEED, ConfidenceInterval, holm, paired_p_values
from pipeline.report.summary import QUALITY
from pipeline.report.sweep_note import SweepNote, read_note
from pipeline.report.table import (
    LabelledTexts,
    Remark,
    ReportPart,
    Table,
    csv_text,
    format_number,
    markdown,
    print_parts,
    shared_decimals,
)  # fmt: skip
from serving.metrics import definitions

NO_RESULT = "no result: killed, interrupted or still running"
_PARETO = {
    "latency/tbt_s/mean": "TBT",
    "latency/service_s_per_token/mean": "service",
    "cost/usd_per_million_tokens": "cost",
}
"""What quality is weighed against, and its short name."""
_PAIRED = (QUALITY, *_PARETO)
"""The metrics whose differences from the baseline are tested."""


@dataclass(frozen=True)
class Difference:
    """A job's metric minus its baseline's on the same prompts; `p` is adjusted for all tests of the sweep (Holm)."""

    interval: ConfidenceInterval
    p: float


@dataclass(frozen=True)
class ComparisonRow:
    """One job: the `choices` in which jobs differ, its mean quality, and how it compares with the others.

    baseline     the number of the job that it is compared with; None for a baseline itself
    is_baseline  others are compared with it, as soon as they have results
    prompts      a number that jobs with the same prompts share; None without records
    differences  by metric; empty unless both served the same prompts
    best         the metrics in which no job with the same prompts is better, unless all are alike
    pareto       the metrics against which no job with the same prompts has a better quality
    """

    result: JobResult
    choices: Mapping[str, str]
    quality: ConfidenceInterval | None = None
    baseline: int | None = None
    differences: Mapping[str, Difference] = field(default_factory=dict)
    best: frozenset[str] = frozenset()
    pareto: tuple[str, ...] = ()
    is_baseline: bool = False
    prompts: int | None = None

    @property
    def problem(self) -> str | None:
        """Why there is no result, on one line; None if there is one."""
        if self.result.status == "complete":
            return None
        words = " ".join((self.result.error or "").split())
        return f"failed: {words or 'no reason was given'}" if self.result.status == "failed" else NO_RESULT


def compare_jobs(sweep: Path, baseline: str | None = None) -> list[ComparisonRow]:
    """A row for each started job of the multirun in this folder, in the jobs' order.

    `baseline` is a policy or a value that jobs differ in; by default the first complete job is the baseline.
    """
    return compare_results(read_jobs(sweep), baseline)


def read_jobs(sweep: Path) -> list[JobResult]:
    """The result of each started job of the multirun in this folder, in the jobs' order; not those that an earlier,
    different command left there.
    """
    note = read_note(sweep) or SweepNote()
    found = [one for folder in sorted(sweep.iterdir()) if folder.is_dir() and (one := job_result.read_result(folder))]
    found = [one for one in found if one.number is None or note.lists(one.number, one.overrides)]
    return sorted(found, key=lambda one: (one.number is None, one.number or 0))


def compare_results(found: Sequence[JobResult], baseline: str | None = None) -> list[ComparisonRow]:
    """As `compare_jobs`, of results that were read."""
    choices = differing_overrides([one.overrides for one in found])
    sums = [_paired_sums(one) for one in found]
    candidates = _baselines(found, choices, baseline)
    against = [nearest(own, candidates, choices) for own in range(len(found))]
    prompts = [_prompts(one, own) for one, own in zip(found, sums, strict=True)]
    differences = _differences(found, sums, prompts, against)
    groups = {own: number for number, own in enumerate(dict.fromkeys(prompts)) if own}
    rows = [
        ComparisonRow(
            one,
            chosen,
            _quality(one, own),
            None if other is None else found[other].number,
            differences[place],
            is_baseline=place in candidates,
            prompts=groups.get(prompts[place]),
        )
        for place, (one, chosen, own, other) in enumerate(zip(found, choices, sums, against, strict=True))
    ]
    return _ranked(rows)


def _paired_sums(one: JobResult) -> dict[str, PromptSums]:
    """By metric; empty if the records are gone."""
    if one.status != "complete" or not one.artifact:
        return {}
    by_prompt = requests_by_prompt(one.artifact)
    found = {key: prompt_sums(key, one.metrics[key], by_prompt) for key in _PAIRED if key in one.metrics}
    return {key: sums for key, sums in found.items() if sums}


def _prompts(one: JobResult, sums: Mapping[str, PromptSums]) -> tuple[str, ...]:
    """The data set and the ids of the prompts that are served of it; empty without records."""
    ids = next((own.prompts for own in sums.values()), ())
    if not ids or not one.artifact:
        return ()
    dataset = served_dataset(manifest.read_manifest(Path(one.artifact)))
    return (json.dumps(dataset, sort_keys=True), *ids)


def _quality(one: JobResult, sums: Mapping[str, PromptSums]) -> ConfidenceInterval | None:
    return estimate(one.metrics[QUALITY], "", sums[QUALITY]).interval if QUALITY in sums else None


def _baselines(found: Sequence[JobResult], choices: Sequence[Mapping[str, str]], name: str | None) -> list[int]:
    """The places of the complete jobs that are the baseline `name`: with this value, else of this policy."""
    complete = [place for place, one in enumerate(found) if one.status == "complete"]
    if name is None:
        return complete[:1]
    by_value = [place for place in complete if matches(name, choices[place])]
    return by_value or [place for place in complete if found[place].policy == name]


def _differences(
    found: Sequence[JobResult],
    sums: Sequence[Mapping[str, PromptSums]],
    prompts: Sequence[tuple[str, ...]],
    against: Sequence[int | None],
) -> list[dict[str, Difference]]:
    """The differences of each job, tested together."""
    pairs = [
        (own, other, key)
        for own, other in enumerate(against)
        if other is not None and prompts[own] == prompts[other]
        for key in _PAIRED
        if key in sums[own] and key in sums[other]
    ]
    tests = [sums[own][key].paired_with(sums[other][key]) for own, other, key in pairs]
    p_values = holm(paired_p_values(tests, seed=BOOTSTRAP_SEED))
    differences: list[dict[str, Difference]] = [{} for _ in found]
    for (own, other, key), p in zip(pairs, p_values, strict=True):
        mine, its = (estimate(found[place].metrics[key], "", sums[place][key]) for place in (own, other))
        paired = mine.paired_difference(its)
        if paired and paired.interval:
            differences[own][key] = Difference(paired.interval, p)
    return differences


def _ranked(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """The rows with what they are best in, and where they are Pareto-optimal, among the rows with the same prompts.

    Rows without records are compared with none: their prompts are not known.
    """
    found = list(rows)
    for own in {row.prompts for row in rows} - {None}:
        group = [place for place, row in enumerate(rows) if row.prompts == own and row.problem is None]
        if len(group) > 1:
            metrics = [rows[place].result.metrics for place in group]
            winning = {key: _best_text(key, metrics) for key in (QUALITY, *definitions.COMPARED)}
            for place in group:
                mine = rows[place].result.metrics
                best = frozenset(
                    key for key, text in winning.items() if text and key in mine and _scaled(key, mine[key]) == text
                )
                pareto = tuple(key for key in _PARETO if _is_pareto_optimal(key, mine, metrics))
                found[place] = replace(rows[place], best=best, pareto=pareto)
    return found


def _best_text(key: str, jobs: Sequence[Mapping[str, float]]) -> str | None:
    """The best value as it is printed; None if all are printed alike, or none is better than another."""
    metric = definitions.find(key)
    known = [one[key] for one in jobs if key in one]
    if metric is None or not metric.better or len({_scaled(key, one) for one in known}) < 2:
        return None
    return _scaled(key, max(known) if metric.better == "higher" else min(known))


def _is_pareto_optimal(key: str, own: Mapping[str, float], others: Sequence[Mapping[str, float]]) -> bool:
    """True if no other has at least this quality for at most this much of `key`, and is better in one of them."""
    if QUALITY not in own or key not in own:
        return False
    quality, spent = own[QUALITY], own[key]
    known = [(one[QUALITY], one[key]) for one in others if QUALITY in one and key in one]
    return not any(q >= quality and s <= spent and (q, s) != (quality, spent) for q, s in known)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def comparison_parts(rows: Sequence[ComparisonRow], planned: int = 0) -> list[ReportPart]:
    """The printed table, the differences from the baseline, and the meaning of both; `planned` counts all jobs of the
    sweep, those that have not begun too.

    Jobs that served nothing, such as searches for a capacity, have their exhibit's table instead.
    """
    complete, total = count_jobs(rows, planned)
    found: list[ReportPart] = [f"{complete} of {total} jobs complete"]
    served = any(row.result.metrics.keys() & {QUALITY, *definitions.COMPARED} for row in rows)
    if served or complete < len(rows):
        found.append(_metrics_table(rows))
    if not served:
        return found
    facts = list(_legend(rows))
    if any(row.differences for row in rows):
        found += [_differences_title(rows), _differences_table(rows)]
    elif any(row.baseline is not None and row.problem is None for row in rows):
        facts.append(("baseline", "no other job has the prompts of the baseline: there are no paired differences"))
    return [*found, LabelledTexts(tuple(facts))]


def count_jobs(rows: Sequence[ComparisonRow], planned: int) -> tuple[int, int]:
    """The complete jobs, and all: those that have rows, and those that have not begun."""
    return sum(row.problem is None for row in rows), max(planned, len(rows))


def num_planned(sweep: Path) -> int:
    """The jobs of the sweep in this folder; 0 where it is not known, as of a search."""
    note = read_note(sweep)
    return len(note.jobs) if note else 0


def comparison_markdown(rows: Sequence[ComparisonRow], planned: int = 0) -> str:
    """What is printed of the comparison as Markdown: tables, titles and legend, for MLflow's description of a sweep."""
    return markdown(comparison_parts(rows, planned))


def _legend(rows: Sequence[ComparisonRow]) -> list[tuple[str, str]]:
    found = [("note", text) for text in job_result.transport_checks(row.result for row in rows)]
    if any(row.best for row in rows):
        found.append(("*", "best of the column, among the jobs with the same prompts"))
    if any(row.pareto for row in rows):
        found.append((
            "Pareto",
            "no job with the same prompts has a higher quality at the same or a lower mean TBT (TBT), mean service "
            "time a token (service) or cost (cost), nor an equal quality for less",
        ))  # fmt: skip
    if any(row.differences for row in rows):
        tests = sum(len(row.differences) for row in rows)
        found.append((
            "difference",
            "from the baseline's job with the most choices in common, paired prompt by prompt: bootstrap interval, and "
            f"p of a permutation test, adjusted by Holm's method for the {tests} tests of this table; only where the "
            "prompts are the same",
        ))  # fmt: skip
    return [
        *found,
        ("tokens offl.", "tokens of the text that the cloud judged or wrote; chunks asked: of the draft chunks"),
        (
            "TBT, service",
            "TBT leaves out the time to the first token and counts 0 between tokens that are shown at "
            "once; service is the time from the device's start on a request to its end, over its tokens",
        ),
        ("cost", "busy seconds of the cloud's chips at their price (each job's report has price, source and load)"),
    ]


def _metrics_table(rows: Sequence[ComparisonRow]) -> Table:
    """Without the columns that no job has a value for."""
    names = list(rows[0].choices) if rows else []
    keys = [key for key in definitions.COMPARED if any(key in row.result.metrics for row in rows)]
    metrics = {row.result.quality_metric for row in rows if row.quality}
    quality = metrics.pop() if len(metrics) == 1 else "quality"
    headings = ("job", *names, f"{quality}\n95 % interval", "Pareto", *map(_heading, keys))
    columns = [
        _marked(rows, QUALITY, [_format_interval(row.quality) for row in rows]),
        [", ".join(_PARETO[key] for key in row.pareto) or "-" for row in rows],
        *(_marked(rows, key, [_scaled(key, row.result.metrics.get(key)) for row in rows]) for key in keys),
    ]
    cells = [
        (*_labels(row), Remark(row.problem)) if row.problem else (*_labels(row), *(column[place] for column in columns))
        for place, row in enumerate(rows)
    ]
    return Table(headings, tuple(cells), num_label_columns=1 + len(names))


def _marked(rows: Sequence[ComparisonRow], key: str, cells: Sequence[str]) -> list[str]:
    """The column with a star behind the best; the other cells keep its place free."""
    blank = " " if any(key in row.best for row in rows) else ""
    return [cell + ("*" if key in row.best else blank) for row, cell in zip(rows, cells, strict=True)]


def _labels(row: ComparisonRow) -> tuple[str, ...]:
    return ("-" if row.result.number is None else str(row.result.number), *row.choices.values())


def _differences_title(rows: Sequence[ComparisonRow]) -> str:
    used = {row.baseline for row in rows if row.differences}
    jobs = [(row.result.number, [one for one in row.choices.values() if one != "-"]) for row in rows]
    return "Difference from " + ", ".join(f"job {number} ({', '.join(own)})" for number, own in jobs if number in used)


def _differences_table(rows: Sequence[ComparisonRow]) -> Table:
    keys = [key for key in _PAIRED if any(key in row.differences for row in rows)]
    names = ["quality" if key == QUALITY else _heading(key).replace("\n", " ") for key in keys]
    headings = ("job", *rows[0].choices, "minus\njob", *(f"{name}\n95 % interval, p" for name in names))
    cells = [
        (*_labels(row), str(row.baseline), *(_format_difference(key, row.differences.get(key)) for key in keys))
        for row in rows
        if row.differences
    ]
    return Table(headings, tuple(cells), num_label_columns=len(headings) - len(keys))


def _format_difference(key: str, found: Difference | None) -> str:
    metric = definitions.find(key)
    if found is None or metric is None:
        return "-"
    values = [metric.scale * one for one in (found.interval.mean, found.interval.low, found.interval.high)]
    shape = f"+,.{3 if key == QUALITY else shared_decimals(values)}f"
    mean, low, high = (f"{value:{shape}}" for value in values)
    return f"{mean} [{low}, {high}]  " + (f"p={found.p:.3f}" if found.p >= 0.0005 else "p<0.001")


def _heading(key: str) -> str:
    """The metric's, with the statistic if the metric has several."""
    metric = definitions.find(key)
    assert metric is not None, key
    return f"{metric.heading}{key.removeprefix(metric.key).replace('/', chr(10))}"


def _scaled(key: str, value: float | None) -> str:
    """In the unit of the heading."""
    metric = definitions.find(key)
    return format_number(metric.scale * value) if metric and value is not None else "-"


def _format_interval(interval: ConfidenceInterval | None) -> str:
    return "-" if interval is None else f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def print_table(sweep: Path, file: TextIO, baseline: str | None = None) -> list[ComparisonRow]:
    """Prints the comparison of the jobs below `sweep`, which may have been interrupted; its rows."""
    rows = compare_jobs(sweep, baseline)
    parts = comparison_parts(rows, num_planned(sweep))
    if baseline is not None and rows and (remark := baseline_remark(rows, baseline)):
        parts.append(LabelledTexts((("baseline", remark),)))
    print_parts(parts, file)
    return rows


def baseline_remark(rows: Sequence[ComparisonRow], name: str) -> str:
    """Why nothing can be compared with the baseline; empty if something can."""
    if not any(row.is_baseline for row in rows):
        return f"no complete job is {name}: there are no differences"
    others = any(row.problem is None and not row.is_baseline for row in rows)
    return "" if others else f"every complete job is {name}: there is nothing to compare it with"


def write_csv(rows: Sequence[ComparisonRow], path: Path) -> Path:
    """Writes comparison.csv: for each job its status, choices, intervals, differences and every metric."""
    fingerprint.write_atomic(path, csv_text([_record(row) for row in rows]))
    return path


def _record(row: ComparisonRow) -> dict[str, object]:
    one = row.result
    found: dict[str, object] = {"job": one.number, "status": one.status, "problem": row.problem, "policy": one.policy}
    found |= row.choices
    found |= {"pareto": " ".join(row.pareto), "best": " ".join(sorted(row.best)), "baseline": row.baseline}
    found |= _bounds("quality", row.quality) if row.quality else {}
    for key, difference in row.differences.items():
        name = f"difference {key}"
        found |= {**_bounds(name, difference.interval), f"{name} p (Holm)": difference.p}
    return {**found, **one.metrics, "digest": one.digest, "run_id": one.run_id}


def _bounds(name: str, interval: ConfidenceInterval) -> dict[str, object]:
    return {f"{name} {end}": getattr(interval, end) for end in ("mean", "low", "high")}


def tradeoff_points(rows: Sequence[ComparisonRow]) -> list[TradeoffPoint]:
    """The complete jobs that have a quality, for the trade-off figure.

    Choices that are numbers (a budget) are points of one line; any other (a policy, a link) makes a new line.
    """
    return [_tradeoff_point(row, row.quality) for row in rows if row.quality]


def _tradeoff_point(row: ComparisonRow, quality: ConfidenceInterval) -> TradeoffPoint:
    given = [value for name, value in row.choices.items() if name != "policy" and value != "-"]
    group = ", ".join([row.result.policy, *(value for value in given if not _is_number(value))])
    label = ", ".join(filter(_is_number, given))
    return TradeoffPoint(group, label, quality.mean, quality.low, quality.high, row.result.metrics, row.result.policy)
