"""Compares the jobs of a sweep: their choices, their metrics, and the intervals of quality and its differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from pipeline.artifacts import fingerprint
from pipeline.errors import UserError
from pipeline.report import job_result, statistics
from pipeline.report.figures import TradeoffPoint
from pipeline.report.job_result import JobResult
from pipeline.report.job_summary import BOOTSTRAP_SEED
from pipeline.report.records import read_requests
from pipeline.report.statistics import ConfidenceInterval
from pipeline.report.table import LabelledTexts, ReportPart, Table, csv_text, format_number, print_parts
from serving.metrics import definitions

NO_RESULT = "no result: the job was killed or is still running"


@dataclass(frozen=True)
class ComparisonRow:
    """One job: the `choices` in which jobs differ, its mean quality, and the paired `difference` from the first job."""

    result: JobResult
    choices: Mapping[str, str]
    quality: ConfidenceInterval | None = None
    difference: ConfidenceInterval | None = None

    @property
    def problem(self) -> str | None:
        """Why there is no result, on one line; None if there is one."""
        if self.result.status == "complete":
            return None
        words = " ".join((self.result.error or "").split())
        return f"failed: {words or 'no reason was given'}" if self.result.status == "failed" else NO_RESULT


def compare_jobs(sweep: Path) -> list[ComparisonRow]:
    """A row for each started job below the folder of a multirun, in the jobs' order."""
    found = [one for folder in sorted(sweep.iterdir()) if folder.is_dir() and (one := job_result.read_result(folder))]
    found.sort(key=lambda one: (one.number is None, one.number or 0))
    choices = differing_overrides([one.overrides for one in found])
    scores = [_quality_by_prompt(one) for one in found]
    first = next((one for one in scores if one), {})
    return [
        ComparisonRow(one, chosen, _interval(own), _paired_interval(own, first) if own is not first else None)
        for one, chosen, own in zip(found, choices, scores, strict=True)
    ]


def differing_overrides(overrides: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """The overrides of each job in which the jobs differ, under the shortest names that tell them apart."""
    given = [dict(_split(one) for one in job) for job in overrides]
    keys = dict.fromkeys(key for job in given for key in job)
    differing = [key for key in keys if len({job.get(key) for job in given}) > 1]
    return [{name: job.get(key, "-") for key, name in _shortest_names(differing).items()} for job in given]


def _split(override: str) -> tuple[str, str]:
    key, _, value = override.lstrip("+~").partition("=")
    return key, value


def _shortest_names(keys: Sequence[str]) -> dict[str, str]:
    """The shortest suffix of each key that no other key has."""
    return {key: next(name for name in _suffixes(key) if name == key or _is_unique(name, keys)) for key in keys}


def _suffixes(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]


def _is_unique(name: str, keys: Sequence[str]) -> bool:
    return sum(f".{key}".endswith(f".{name}") for key in keys) == 1


def _quality_by_prompt(one: JobResult) -> dict[str, float]:
    """Mean quality by prompt; empty if the records are gone."""
    if one.status != "complete" or not one.artifact:
        return {}
    try:
        requests = read_requests(Path(one.artifact))
    except UserError:
        return {}
    scored: dict[str, list[float]] = {}
    for request in requests:
        if request.quality is not None:
            scored.setdefault(request.prompt_id, []).append(request.quality)
    return {prompt: sum(values) / len(values) for prompt, values in sorted(scored.items())}


def _interval(scores: Mapping[str, float]) -> ConfidenceInterval | None:
    return statistics.mean_interval(list(scores.values()), seed=BOOTSTRAP_SEED) if scores else None


def _paired_interval(ours: Mapping[str, float], baseline: Mapping[str, float]) -> ConfidenceInterval | None:
    """None unless both served the same prompts."""
    if not ours or ours.keys() != baseline.keys():
        return None
    return statistics.paired_interval(list(ours.values()), list(baseline.values()), seed=BOOTSTRAP_SEED)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def comparison_parts(rows: Sequence[ComparisonRow]) -> list[ReportPart]:
    """The printed table and the meaning of its columns."""
    metrics = {row.result.quality_metric for row in rows if row.quality}
    quality = metrics.pop() if len(metrics) == 1 else "quality"
    names = list(rows[0].choices) if rows else []
    first = next((row.result.number for row in rows if row.quality), 0)
    headings = (
        "job",
        *names,
        f"{quality}\n95 % interval",
        f"minus job {first}\n95 % interval",
        *map(_heading, definitions.COMPARED),
    )
    table = Table(headings, tuple(_cells(row) for row in rows), num_label_columns=1 + len(names))
    complete = sum(row.problem is None for row in rows)
    return [f"{complete} of {len(rows)} jobs complete", table, LabelledTexts(_LEGEND)]


_LEGEND = (
    (
        "minus job",
        "mean difference of quality, prompt by prompt (paired bootstrap); only where the prompts are the same",
    ),
    ("tokens offl.", "tokens of the text that the cloud judged or wrote; chunks asked: of the draft chunks"),
    ("cost", "c = T W / Pf (Synera, section 6.1) per token, W as tokens verified and as tokens written by the LLM"),
)


def _cells(row: ComparisonRow) -> tuple[str, ...]:
    number_ = "-" if row.result.number is None else str(row.result.number)
    labels = (number_, *row.choices.values())
    if row.problem:
        return (*labels, row.problem)
    metrics = row.result.metrics
    values = (_format_scaled(key, metrics.get(key)) for key in definitions.COMPARED)
    return (*labels, _format_interval(row.quality, ""), _format_interval(row.difference, "+"), *values)


def _heading(key: str) -> str:
    """The metric's, with the statistic if the metric has several."""
    metric = definitions.find(key)
    assert metric is not None, key
    return f"{metric.heading}{key.removeprefix(metric.key).replace('/', chr(10))}"


def _format_scaled(key: str, value: float | None) -> str:
    """In the unit of the heading."""
    metric = definitions.find(key)
    return format_number(metric.scale * value) if metric and value is not None else "-"


def _format_interval(interval: ConfidenceInterval | None, sign: str) -> str:
    if interval is None:
        return "-"
    return f"{interval.mean:{sign}.3f} [{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"


def print_table(sweep: Path, file: TextIO) -> list[ComparisonRow]:
    """Prints the comparison of the jobs below `sweep`, which may have been interrupted; its rows."""
    rows = compare_jobs(sweep)
    print_parts(comparison_parts(rows), file)
    return rows


def write_csv(rows: Sequence[ComparisonRow], path: Path) -> Path:
    """Writes comparison.csv: for each job its status, choices, intervals and every metric."""
    fingerprint.write_atomic(path, csv_text([_record(row) for row in rows]))
    return path


def _record(row: ComparisonRow) -> dict[str, object]:
    one = row.result
    spans = {"quality": row.quality, "difference": row.difference}
    bounds = {
        f"{name}_{end}": getattr(span, end) for name, span in spans.items() if span for end in ("mean", "low", "high")
    }
    head = {"job": one.number, "status": one.status, "problem": row.problem, "policy": one.policy}
    return {**head, **row.choices, **bounds, **one.metrics, "digest": one.digest, "run_id": one.run_id}


def tradeoff_points(rows: Sequence[ComparisonRow]) -> list[TradeoffPoint]:
    """The complete jobs that have a quality, for the trade-off figure.

    Choices that are numbers (a budget) are points of one line; any other (a policy, a link) makes a new line.
    """
    return [_tradeoff_point(row, row.quality) for row in rows if row.quality]


def _tradeoff_point(row: ComparisonRow, quality: ConfidenceInterval) -> TradeoffPoint:
    given = [value for name, value in row.choices.items() if name != "policy" and value != "-"]
    group = ", ".join([row.result.policy, *(value for value in given if not _is_number(value))])
    label = ", ".join(filter(_is_number, given))
    return TradeoffPoint(group, label, quality.mean, quality.low, quality.high, row.result.metrics)
