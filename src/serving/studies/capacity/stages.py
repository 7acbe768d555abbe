"""The stages of capacity studies: capacity by SLO class, and load tests at given numbers of devices."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from serving.deployment.setup import Setup
from serving.hardware.architecture import Architecture
from serving.policy.policy import Policy
from serving.progress import Progress
from serving.runtimes.simulated import Simulated
from serving.studies.capacity.cases import Case, cases
from serving.studies.capacity.jobs import (
    CAPACITY_METRICS,
    CapacityJob,
    LoadTestJob,
    interval_text,
    run_capacity_job,
    run_jobs,
    run_load_test_job,
    table_columns,
)
from serving.studies.capacity.load_test import LoadTest
from serving.studies.capacity.search import CapacitySearch
from serving.workload.slo import SloClass

StudyTable = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class TableLayout:
    """Templates for a table's rows and groups, over {system}, {target}, {variant}, and in load tests {devices}."""

    row: str = "{system}"
    group: str = "{target}{variant}"


def find_capacity(
    out: Path,
    *,
    progress: Progress,
    work: Path,
    setup: Setup,
    runtime: Simulated,
    search: CapacitySearch,
    systems: dict[str, Policy] | None = None,
    targets: dict[str, Architecture] | None = None,
    variants: dict[str, dict[str, Any]] | None = None,
    layout: TableLayout | None = None,
    processes: int | None = None,
) -> None:
    """Finds the capacity of each system for each SLO class of the workload, all devices in that class (WISP, Eq. 20).

    Writes rows.json (a table for an exhibit: capacities by seed), metrics.json (means, intervals, decision times) and
    curves.json (all measured violation rates). Finished jobs survive an interruption.
    """
    jobs = [
        CapacityJob(_in_class(case, one), one.name, case.load_test)
        for case in cases(setup, runtime.outcomes, search, systems or {}, targets or {}, variants or {})
        for one in setup.workload.slo
        if isinstance(case.load_test, CapacitySearch)
    ]
    _check_not_empty(jobs, "no SLO class says how fast answers should be; set workload.slo, or add +slo=mixed")
    names = [f"{job.case.system}, {job.case.target} {job.case.variant}, {job.column}" for job in jobs]
    table, metrics, curves = StudyTable(), dict[str, float](), dict[str, Any]()
    table_rows = [_table_row(table, job.case, layout or TableLayout()) for job in jobs]
    found = run_jobs(jobs, names, run_capacity_job, work, progress, processes)
    for job, row, name, one in zip(jobs, table_rows, names, found, strict=True):
        row[job.column] = _table_value(one["by_seed"])
        row[f"{job.column}, 95 %"] = interval_text(one)
        metrics |= {f"{name}/{key}": one[key] for key in CAPACITY_METRICS if one[key] is not None}
        curves[name] = one["curve"]
    _write_json(out, rows=table, metrics=metrics, curves=curves)


def measure_load(
    out: Path,
    *,
    progress: Progress,
    work: Path,
    setup: Setup,
    runtime: Simulated,
    load_test: LoadTest,
    device_counts: tuple[int, ...],
    seeds: tuple[int, ...] = (0, 1, 2),
    systems: dict[str, Policy] | None = None,
    targets: dict[str, Architecture] | None = None,
    variants: dict[str, dict[str, Any]] | None = None,
    layout: TableLayout | None = None,
    processes: int | None = None,
) -> None:
    """Measures goodput, waste, violations by class and decision times at given numbers of devices.

    Writes rows.json (a table for an exhibit, a value per seed), metrics.json (means) and measured.json. Finished jobs
    survive an interruption.
    """
    jobs = [
        LoadTestJob(case, count, seed)
        for case in cases(setup, runtime.outcomes, load_test, systems or {}, targets or {}, variants or {})
        for count in device_counts
        for seed in seeds
    ]
    _check_not_empty(jobs, f"device_counts={device_counts} and seeds={seeds}: name at least one of each")
    names = [f"{p.case.system}, {p.case.target} {p.case.variant}, {p.devices} devices, seed {p.seed}" for p in jobs]
    table = StudyTable()
    table_rows = [_table_row(table, one.case, layout or TableLayout("{system}, {devices}"), one) for one in jobs]
    found = run_jobs(jobs, names, run_load_test_job, work, progress, processes)
    for row, one in zip(table_rows, found, strict=True):
        for key, value in table_columns(one).items():
            row.setdefault(key, []).append(value)
    means = {
        f"{group} {row}/{key}".strip(): sum(values) / len(values)
        for group, rows in table.items()
        for row, cells in rows.items()
        for key, values in cells.items()
    }
    shown = {
        g: {r: {k: _table_value(v) for k, v in one.items()} for r, one in rows.items()} for g, rows in table.items()
    }
    _write_json(out, rows=shown, metrics=means, measured=found)


def _in_class(case: Case, one: SloClass) -> Case:
    """The case with all devices in this class."""
    workload = replace(case.setup.workload, slo=(replace(one, share=1.0),))
    return replace(case, setup=replace(case.setup, workload=workload))


def _table_row(table: StudyTable, case: Case, layout: TableLayout, job: LoadTestJob | None = None) -> dict[str, Any]:
    more = {"devices": job.devices} if job else {}
    return table.setdefault(case.label(layout.group, **more), {}).setdefault(case.label(layout.row, **more), {})


def _table_value(by_seed: list[float]) -> list[float] | float:
    """A single value for one seed, else the values by seed."""
    return by_seed if len(by_seed) > 1 else by_seed[0]


def _check_not_empty(jobs: Sequence[object], message: str) -> None:
    if not jobs:
        raise ValueError(message)


def _write_json(out: Path, **parts: Any) -> None:
    for name, content in parts.items():
        (out / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
