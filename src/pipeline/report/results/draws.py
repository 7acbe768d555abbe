"""How often a claim holds when the clock is drawn: `docs/results/EXPERIMENT.draws`, kept from a sweep `+draws=clock`.

Each job of such a sweep leaves draws.json: metric -> its value in every draw, the same draws of the clock in all jobs.
A claim is decided in each draw from the jobs' values alone: the mean over seeds of the row, against its baseline's.
An exhibit of one run, whose table is arithmetic on the clock, leaves table_draws.json: group -> row -> metric -> those.
"""

import json
import operator
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.artifacts import fingerprint
from pipeline.report.estimate import Estimate, can_divide
from pipeline.report.exhibit.claims import claim_status
from pipeline.report.exhibit.jobs import RowKey, choices_of, row_key
from pipeline.report.exhibit.render import ExhibitOutput
from pipeline.report.exhibit.schema import Claim, Exhibit, ExhibitColumn, RelativeTo
from pipeline.report.exhibit.stage import read_rows
from pipeline.report.exhibit.sweep import SweepExhibit
from pipeline.report.job_result import JobResult
from pipeline.report.mlflow_store import key_text
from pipeline.report.records import Records
from pipeline.report.results.kept import KeptResultError
from pipeline.report.results.verdicts import DRAWS_NEEDED, claim_key
from pipeline.report.summary import summarise
from pipeline.report.table import LabelledTexts, ReportPart, csv_text
from serving.hardware import error_pools

DRAWS_FILE, TABLE_FILE = "draws.json", "table_draws.json"

Series = Mapping[str, Sequence[float]]
"""Metric -> its value in every draw."""


def are_draws(jobs: Sequence[JobResult]) -> bool:
    """True if a job left draws of the clock in place of a served result."""
    return any(one.artifact and (Path(one.artifact) / DRAWS_FILE).exists() for one in jobs)


def shares_by_claim(prepared: SweepExhibit, experiment: str, jobs: Sequence[JobResult]) -> tuple[dict[str, float], int]:
    """The share of the draws in which each claim (`claim_key`) holds that the jobs of a sweep, or the table of a run,
    decide; and the number of draws. Raises KeptResultError without any.
    """
    series = _table_series(jobs[0]) if jobs[0].number is None else _series_by_row(prepared, jobs)
    shares = {claim_key(claim): share for claim, share in _shares(prepared.exhibit, series)}
    if not shares:
        raise KeptResultError(
            f"no claim of {experiment} is decided by the rows of this sweep: {sorted(series)}. Claims on how long "
            "batches take need +stages.drawn.batches=true, on how long devices wait +stages.drawn.time_lines=true."
        )
    return shares, _num_draws(series)


def write_shares(prepared: SweepExhibit, jobs: Sequence[JobResult], folder: Path) -> ExhibitOutput:
    """The share of the draws in which each claim holds, of the jobs that have draws; also in draws.csv in `folder`.
    A sweep of draws has nothing else to show: its jobs served nothing.
    """
    series = _series_by_row(prepared, [one for one in jobs if are_draws([one])])
    found = list(_shares(prepared.exhibit, series))
    path = folder / "draws.csv"
    fingerprint.write_atomic(path, csv_text([{**claim, "share of draws": share} for claim, share in found]))
    names = (key_text("/".join(filter(None, ("draws", claim["group"], claim["statement"])))) for claim, _ in found)
    metrics = dict(zip(names, (share for _, share in found), strict=True))
    return ExhibitOutput(list(_share_parts(prepared.exhibit, found, _num_draws(series))), [path], metrics)


def _share_parts(
    exhibit: Exhibit, found: Sequence[tuple[Mapping[str, Any], float]], num_draws: int
) -> Iterator[ReportPart]:
    """A line for each claim: the share of the draws in which it holds, least to greatest of its groups."""
    yield f"{exhibit.title}: {num_draws} draws of the clock"
    lines: dict[str, dict[str, float]] = {}
    for claim, share in found:
        lines.setdefault(_asked(claim, found), {})[claim["group"]] = 100 * share
    yield LabelledTexts(tuple((_range(shares.values()), asked + _by_group(shares)) for asked, shares in lines.items()))
    yield LabelledTexts((
        *(() if lines else (("claims", "none is about rows of this sweep"),)),
        ("draws", "of all chips' errors at once, the same in every job; rows are means over their seeds"),
        ("verdict", f"a claim that rests on the clock needs {100 * DRAWS_NEEDED:.0f} % of the draws; `python -m "
                    "pipeline results draws FOLDER` keeps those of an experiment"),
    ))  # fmt: skip


def _asked(claim: Mapping[str, Any], found: Sequence[tuple[Mapping[str, Any], float]]) -> str:
    """The statement; with its rows and metric where the exhibit asks it of several."""
    alike = [one for one, _ in found if (one["statement"], one["group"]) == (claim["statement"], claim["group"])]
    against = f" against {claim['baseline']}" if claim["baseline"] is not None else ""
    return str(claim["statement"]) + (f" ({claim['row']}{against}, {claim['metric']})" if len(alike) > 1 else "")


def _range(shares: Collection[float]) -> str:
    least, most = (f"{share:.1f}" for share in (min(shares), max(shares)))
    return f"{least} %" if least == most else f"{least} to {most} %"


def _by_group(shares: Mapping[str, float]) -> str:
    if len(shares) == 1:
        return "".join(f" ({group})" for group in shares if group)
    if len(set(shares.values())) == 1:
        return f", in {len(shares)} groups"
    return ": " + ", ".join(f"{group} {share:.1f}" for group, share in shares.items())


def _num_draws(series: Mapping[tuple[str, str], Series]) -> int:
    return max((len(values) for metrics in series.values() for values in metrics.values()), default=0)


def summarise_draws(out: Path, *, drawn: Path) -> None:
    """A stage: reads the records of each draw below `drawn`, and writes draws.json, each metric's value by draw."""
    found = [summarise(Records.read(folder)).metrics() for folder in _draw_folders(drawn)]
    common = set.intersection(*map(set, found))
    series = {metric: [metrics[metric] for metrics in found] for metric in sorted(common)}
    (out / DRAWS_FILE).write_text(json.dumps(series), encoding="utf-8")
    _copy_note(drawn, out)


def summarise_tables(out: Path, *, drawn: Path) -> None:
    """A stage: reads the table of each draw below `drawn`, and writes table_draws.json, the value by draw of each cell
    that is a number in all of them.
    """
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    folders = _draw_folders(drawn)
    for row in (row for folder in folders for row in read_rows(folder)):
        series = found.setdefault(row.group, {}).setdefault(row.label, {})
        for metric, cell in row.measured.items():
            if isinstance(cell, Estimate):
                series.setdefault(metric, []).append(cell.value)
    for series in (series for rows in found.values() for series in rows.values()):
        for metric in [metric for metric, values in series.items() if len(values) < len(folders)]:
            del series[metric]
    (out / TABLE_FILE).write_text(json.dumps(found), encoding="utf-8")
    _copy_note(drawn, out)


def _copy_note(drawn: Path, out: Path) -> None:
    if (drawn / error_pools.DRAWN_FILE).exists():
        shutil.copyfile(drawn / error_pools.DRAWN_FILE, out / error_pools.DRAWN_FILE)


def _draw_folders(drawn: Path) -> list[Path]:
    """The folders of the draws, by number."""
    return sorted((folder for folder in drawn.iterdir() if folder.name.isdigit()), key=lambda one: int(one.name))


def _table_series(job: JobResult) -> dict[tuple[str, str], Series]:
    """(group, row) -> every metric of the table of one run, draw by draw."""
    found = _read_draws(job, TABLE_FILE, "+draws=packing, prefill_interference or verification_interference")
    return {(group, row): series for group, rows in found.items() for row, series in rows.items()}


def _series_by_row(prepared: SweepExhibit, jobs: Sequence[JobResult]) -> dict[tuple[str, str], Series]:
    """(group, row) -> the mean over its jobs of every metric, draw by draw."""
    members: dict[tuple[str, str], list[Series]] = {}
    for job in jobs:
        place = _place(prepared, job)
        members.setdefault((place.group, place.label), []).append(_read_draws(job, DRAWS_FILE, "+draws=clock"))
    return {place: _mean_series(own) for place, own in members.items()}


def row_of_job(prepared: SweepExhibit, job: JobResult) -> str:
    """The label of the row that a sweep's job belongs to."""
    return _place(prepared, job).label


def _place(prepared: SweepExhibit, job: JobResult) -> RowKey:
    assert prepared.exhibit.rows is not None
    return row_key(prepared.exhibit.rows, choices_of(job.overrides, prepared.base_choices))


def _read_draws(job: JobResult, name: str, words: str) -> Any:
    try:
        return json.loads((Path(str(job.artifact)) / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        place = "the run" if job.number is None else f"job {job.number}"
        raise KeptResultError(f"{place} has no draws of the clock ({problem}). Run it with {words}.") from problem


def _mean_series(members: Sequence[Series]) -> Series:
    common = set.intersection(*(set(one) for one in members))
    return {
        metric: [sum(values) / len(members) for values in zip(*(one[metric] for one in members), strict=True)]
        for metric in sorted(common)
    }


def _shares(exhibit: Exhibit, series: Mapping[tuple[str, str], Series]) -> Iterator[tuple[dict[str, Any], float]]:
    """Each claim on rows and a metric that the draws have, and its share."""
    groups = list(dict.fromkeys(group for group, _ in series))
    for claim in exhibit.claims:
        for group in groups:
            if claim.group in ("", group):
                differences = _differences(exhibit, claim, group, series)
                if differences:
                    held = [claim_status(claim, value, value) == "holds" for value in differences]
                    yield _node(claim, group), round(sum(held) / len(held), 4)


def _node(claim: Claim, group: str) -> dict[str, Any]:
    return {
        "group": group, "statement": claim.statement, "row": claim.row, "baseline": claim.baseline,
        "metric": claim.metric, "relation": claim.relation, "margin": claim.margin, "value": claim.value,
    }  # fmt: skip


def _differences(exhibit: Exhibit, claim: Claim, group: str, series: Mapping[tuple[str, str], Series]) -> list[float]:
    """The claim's difference in every draw; empty if a row or the metric is missing."""
    column = exhibit.column(claim.metric)
    own = _values(exhibit, column, (group, claim.row), series)
    if claim.baseline is None:
        assert claim.value is not None
        return [value - claim.value for value in own]
    other = _values(exhibit, column, (group, claim.baseline), series)
    return [mine - its for mine, its in zip(own, other, strict=True)] if own and other else []


def _values(
    exhibit: Exhibit, column: ExhibitColumn, place: tuple[str, str], series: Mapping[tuple[str, str], Series]
) -> list[float]:
    """The column's value of a row in every draw, in its unit and relative where the column is; empty where it cannot
    be in one.
    """

    def compared(column: ExhibitColumn, place: tuple[str, str], steps: Sequence[RelativeTo]) -> Sequence[float]:
        if not steps:
            return series.get(place, {}).get(column.metric_name, ())
        *earlier, last = steps
        own = compared(column, place, earlier)
        than = exhibit.column(last.column) if last.column else column
        other = compared(than, last.place(*place), than.comparisons if last.column else earlier)
        if len(own) != len(other) or (last.comparison == "ratio" and not can_divide(other)):
            return ()
        compare = operator.truediv if last.comparison == "ratio" else operator.sub
        return list(map(compare, own, other))

    return [column.scale * value for value in compared(column, place, column.comparisons)]
