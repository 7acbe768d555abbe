"""What configuration may name as a stage: capacity by SLO class, and what is measured at given numbers of devices."""

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
    """A table's rows and groups: templates over {system}, {target}, {variant}, and {devices} where those are given."""

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
    """The capacity of each system for each SLO class of the workload, all devices in that class (WISP, Eq. 20).

    Writes rows.json (a table for an exhibit: capacities by seed), metrics.json (means, intervals, what deciding cost)
    and curves.json (every violation rate that was measured on the way). Cells that are done survive an interruption.
    """
    tasks = [
        CapacityJob(_in_class(case, one), one.name, case.load_test)
        for case in cases(setup, runtime.outcomes, search, systems or {}, targets or {}, variants or {})
        for one in setup.workload.slo
        if isinstance(case.load_test, CapacitySearch)
    ]
    _check_not_empty(tasks, "no SLO class says how fast answers should be; set workload.slo, or add +slo=mixed")
    names = [f"{cell.case.system}, {cell.case.target} {cell.case.variant}, {cell.column}" for cell in tasks]
    table, metrics, curves = StudyTable(), dict[str, float](), dict[str, Any]()
    places = [_table_row(table, cell.case, layout or TableLayout()) for cell in tasks]
    found = run_jobs(tasks, names, run_capacity_job, work, progress, processes)
    for cell, place, name, one in zip(tasks, places, names, found, strict=True):
        place[cell.column] = _table_value(one["by_seed"])
        place[f"{cell.column}, 95 %"] = interval_text(one)
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
    """Goodput, waste, violations by class and decision times at given numbers of devices.

    Writes rows.json (a table for an exhibit, a value a seed), metrics.json (means) and measured.json. Cells that are
    done survive an interruption.
    """
    tasks = [
        LoadTestJob(case, count, seed)
        for case in cases(setup, runtime.outcomes, load_test, systems or {}, targets or {}, variants or {})
        for count in device_counts
        for seed in seeds
    ]
    _check_not_empty(tasks, f"devices={device_counts} and seeds={seeds}: name at least one of each")
    names = [f"{p.case.system}, {p.case.target} {p.case.variant}, {p.devices} devices, seed {p.seed}" for p in tasks]
    table = StudyTable()
    places = [_table_row(table, one.case, layout or TableLayout("{system}, {devices}"), one) for one in tasks]
    found = run_jobs(tasks, names, run_load_test_job, work, progress, processes)
    for place, one in zip(places, found, strict=True):
        for key, value in table_columns(one).items():
            place.setdefault(key, []).append(value)
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
    """All devices in this class."""
    workload = replace(case.setup.workload, slo=(replace(one, share=1.0),))
    return replace(case, setup=replace(case.setup, workload=workload))


def _table_row(table: StudyTable, case: Case, layout: TableLayout, job: LoadTestJob | None = None) -> dict[str, Any]:
    more = {"devices": job.devices} if job else {}
    return table.setdefault(case.label(layout.group, **more), {}).setdefault(case.label(layout.row, **more), {})


def _table_value(by_seed: list[float]) -> list[float] | float:
    """One seed is a number, and has no interval."""
    return by_seed if len(by_seed) > 1 else by_seed[0]


def _check_not_empty(tasks: Sequence[object], says: str) -> None:
    if not tasks:
        raise ValueError(says)


def _write_json(out: Path, **parts: Any) -> None:
    for name, content in parts.items():
        (out / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
