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
from serving.studies.capacity.jobs import NUMBERS, Cell, Point, columns, in_all, interval, measured, searched
from serving.studies.capacity.load_test import Steady
from serving.studies.capacity.search import Search
from serving.workload.slo import SloClass

Table = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class Shape:
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
    search: Search,
    systems: dict[str, Policy] | None = None,
    targets: dict[str, Architecture] | None = None,
    variants: dict[str, dict[str, Any]] | None = None,
    shape: Shape | None = None,
    processes: int | None = None,
) -> None:
    """The capacity of each system for each SLO class of the workload, all devices in that class (WISP, Eq. 20).

    Writes rows.json (a table for an exhibit: capacities by seed), metrics.json (means, intervals, what deciding cost)
    and curves.json (every violation rate that was measured on the way). Cells that are done survive an interruption.
    """
    tasks = [
        Cell(_in_class(case, one), one.name, case.measure)
        for case in cases(setup, runtime.outcomes, search, systems or {}, targets or {}, variants or {})
        for one in setup.workload.slo
        if isinstance(case.measure, Search)
    ]
    _check(tasks, "no SLO class says how fast answers should be; set workload.slo, or add +slo=mixed")
    names = [f"{cell.case.system}, {cell.case.target} {cell.case.variant}, {cell.column}" for cell in tasks]
    table, metrics, curves = Table(), dict[str, float](), dict[str, Any]()
    places = [_place(table, cell.case, shape or Shape()) for cell in tasks]
    found = in_all(tasks, names, searched, work, progress, processes)
    for cell, place, name, one in zip(tasks, places, names, found, strict=True):
        place[cell.column] = _cell(one["by_seed"])
        place[f"{cell.column}, 95 %"] = interval(one)
        metrics |= {f"{name}/{key}": one[key] for key in NUMBERS if one[key] is not None}
        curves[name] = one["curve"]
    _write(out, rows=table, metrics=metrics, curves=curves)


def measure_load(
    out: Path,
    *,
    progress: Progress,
    work: Path,
    setup: Setup,
    runtime: Simulated,
    measure: Steady,
    devices: tuple[int, ...],
    seeds: tuple[int, ...] = (0, 1, 2),
    systems: dict[str, Policy] | None = None,
    targets: dict[str, Architecture] | None = None,
    variants: dict[str, dict[str, Any]] | None = None,
    shape: Shape | None = None,
    processes: int | None = None,
) -> None:
    """Goodput, waste, violations by class and decision times at given numbers of devices.

    Writes rows.json (a table for an exhibit, a value a seed), metrics.json (means) and measured.json. Cells that are
    done survive an interruption.
    """
    tasks = [
        Point(case, count, seed)
        for case in cases(setup, runtime.outcomes, measure, systems or {}, targets or {}, variants or {})
        for count in devices
        for seed in seeds
    ]
    _check(tasks, f"devices={devices} and seeds={seeds}: name at least one of each")
    names = [f"{p.case.system}, {p.case.target} {p.case.variant}, {p.devices} devices, seed {p.seed}" for p in tasks]
    table = Table()
    places = [_place(table, one.case, shape or Shape("{system}, {devices}"), one) for one in tasks]
    found = in_all(tasks, names, measured, work, progress, processes)
    for place, one in zip(places, found, strict=True):
        for key, value in columns(one).items():
            place.setdefault(key, []).append(value)
    means = {
        f"{group} {row}/{key}".strip(): sum(values) / len(values)
        for group, rows in table.items()
        for row, cells in rows.items()
        for key, values in cells.items()
    }
    shown = {g: {r: {k: _cell(v) for k, v in one.items()} for r, one in rows.items()} for g, rows in table.items()}
    _write(out, rows=shown, metrics=means, measured=found)


def _in_class(case: Case, one: SloClass) -> Case:
    """All devices in this class."""
    workload = replace(case.setup.workload, slo=(replace(one, share=1.0),))
    return replace(case, setup=replace(case.setup, workload=workload))


def _place(table: Table, case: Case, shape: Shape, point: Point | None = None) -> dict[str, Any]:
    more = {"devices": point.devices} if point else {}
    return table.setdefault(case.label(shape.group, **more), {}).setdefault(case.label(shape.row, **more), {})


def _cell(by_seed: list[float]) -> list[float] | float:
    """One seed is a number, and has no interval."""
    return by_seed if len(by_seed) > 1 else by_seed[0]


def _check(tasks: Sequence[object], says: str) -> None:
    if not tasks:
        raise ValueError(says)


def _write(out: Path, **parts: Any) -> None:
    for name, content in parts.items():
        (out / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
