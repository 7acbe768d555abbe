"""The stages of capacity studies: capacity by SLO class, and load tests at given numbers of devices.

The jobs behind a table, a capacity search or a load test each; run in several processes, saved one by one.
"""

import json
import multiprocessing as mp
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

from native.machine import usable_cores
from serving.deployment.setup import Setup
from serving.hardware.architecture import Architecture
from serving.policy.policy import Policy
from serving.progress import Progress
from serving.runtimes.simulated import Simulated
from serving.studies.capacity.cases import Case, cases
from serving.studies.capacity.load_test import LoadTest, LoadTestResult, run_load_test
from serving.studies.capacity.search import CapacitySearch, search_capacity
from serving.workload.slo import SloClass

if TYPE_CHECKING:
    from multiprocessing.pool import IMapIterator
    from multiprocessing.process import BaseProcess

T = TypeVar("T")
JsonObject = dict[str, Any]
"""A JSON object."""
_POLL_S = 1.0
_KILLED = (
    "one of its processes was killed, perhaps for its memory. The jobs that ended are kept, and the same command goes "
    "on; with fewer processes (the stage's option `processes`; null is one for each core) each has more memory."
)


def run_jobs(
    jobs: Sequence[T],
    names: Sequence[str],
    run: Callable[[T], JsonObject],
    results_dir: Path,
    progress: Progress,
    processes: int | None,
) -> list[JsonObject]:
    """The result of `run` for each job, in their order; `results_dir` has the results of an interrupted run.

    `processes` None: one for each core that this process may use. Passes through what `run` raises, and
    KeyboardInterrupt. Raises ValueError if one of the processes is killed.
    """
    files = [results_dir / f"{i}.json" for i in range(len(jobs))]
    left = [i for i, file in enumerate(files) if not file.is_file()]
    for done, (i, result) in enumerate(_run_missing(jobs, left, run, processes), len(jobs) - len(left) + 1):
        partial = files[i].with_suffix(".part")
        partial.write_text(json.dumps(result), encoding="utf-8")
        partial.replace(files[i])
        progress(done, len(jobs), names[i])
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _run_missing(
    jobs: Sequence[T], missing: Sequence[int], run: Callable[[T], JsonObject], processes: int | None
) -> Iterator[tuple[int, JsonObject]]:
    workers = min(len(missing), processes or usable_cores())
    if workers <= 1:
        yield from ((i, run(jobs[i])) for i in missing)
        return
    others = mp.active_children()
    with mp.get_context("spawn").Pool(workers, _ignoring_interrupts) as pool:
        own = [one for one in mp.active_children() if one not in others]
        results = pool.imap_unordered(partial(_run_indexed, run), [(i, jobs[i]) for i in missing])
        yield from (_next_result(results, own) for _ in missing)


def _next_result(results: "IMapIterator[T]", processes: Sequence["BaseProcess"]) -> T:
    """A pool replaces a process that died, and forgets its job: the result would never come."""
    while True:
        try:
            return results.next(_POLL_S)
        except mp.TimeoutError:
            if not all(one.is_alive() for one in processes):
                raise ValueError(_KILLED) from None


def _run_indexed(run: Callable[[T], JsonObject], indexed: tuple[int, T]) -> tuple[int, JsonObject]:
    return indexed[0], run(indexed[1])


def _ignoring_interrupts() -> None:
    """Ctrl-C reaches every process of a terminal; the parent stops its pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


CAPACITY_METRICS = ("capacity", "low", "high", "decision_ms", "decision_ms_median", "decision_ms_max", "queue_len_max")
"""The metrics of a capacity job that go to metrics.json."""


@dataclass(frozen=True)
class CapacityJob:
    """A search for the capacity of a case."""

    case: Case
    column: str
    search: CapacitySearch


@dataclass(frozen=True)
class LoadTestJob:
    """A load test of a case with a number of devices."""

    case: Case
    devices: int
    seed: int


def run_capacity_job(job: CapacityJob) -> JsonObject:
    """The capacity by seed, its interval, decision times, and the curve: [seed, devices, answers, late answers], of
    rounds where the search counts them.
    """
    case, search = job.case, job.search

    def evaluate(devices: int, seed: int) -> LoadTestResult:
        return run_load_test(case.setup, case.outcomes, search, devices, seed, search.max_late_share)

    found = search_capacity(evaluate, search, case.setup.workload.slo[0].tokens_per_s)
    low, high = found.interval or (None, None)
    return {
        "by_seed": list(found.by_seed.values()),
        "capacity": found.capacity,
        "low": low,
        "high": high,
        "bounded": found.hit_max_devices,
        **_decision_times([one.metrics for one in found.load_tests]),
        "curve": [[one.seed, one.num_devices, *one.num_counted(search.count_late)] for one in found.load_tests],
    }


def _decision_times(figures: Sequence[Mapping[str, float]]) -> JsonObject:
    """Means over runs; maxima for the metrics that are maxima."""
    known = [one for one in figures if "decision_ms" in one]
    return {
        name: (max if name.endswith("max") else fmean)([one[name] for one in known]) if known else 0.0
        for name in ("decision_ms", "decision_ms_median", "decision_ms_max", "queue_len_max")
    }


def run_load_test_job(job: LoadTestJob) -> JsonObject:
    """The fields of `LoadTestResult`."""
    case = job.case
    return run_load_test(case.setup, case.outcomes, case.load_test, job.devices, job.seed).to_dict()


def table_columns(one: Mapping[str, Any]) -> dict[str, float]:
    """The value of each column of a table."""
    found, whole = dict(one["metrics"]), LoadTestResult(**one)
    found |= _shares("slo_violation_rate", one["answers"], one["violations"])
    found |= _shares("slo_round_violation_rate", one["rounds"], one["late_rounds"])
    found |= {f"speed/{name}": value for name, value in one["speeds"].items()}
    rounds = {"slo_round_violation_rate": whole.late_share("rounds")} if one["rounds"] else {}
    return found | {"slo_violation_rate": whole.violation_rate} | rounds


def _shares(prefix: str, counted: Mapping[str, int], late: Mapping[str, int]) -> dict[str, float]:
    return {f"{prefix}/{name}": late[name] / count for name, count in counted.items()}


def interval_text(one: Mapping[str, Any]) -> str:
    """The interval as text, and whether the search stopped at its limit."""
    text = f"{one['low']:.0f} to {one['high']:.0f}" if one["low"] is not None else "one seed"
    return f"{text}, stopped at the limit" if one["bounded"] else text


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
    curves.json (all measured violation rates; of a run that ended early, the answers that were late by then). Finished
    jobs survive an interruption. Raises ValueError where late rounds are counted of a class with a time to the first
    token.
    """
    jobs = [
        CapacityJob(_in_class(case, one), one.name, case.load_test)
        for case in cases(setup, runtime.outcomes, search, systems or {}, targets or {}, variants or {})
        for one in case.setup.workload.slo
        if isinstance(case.load_test, CapacitySearch)
    ]
    _check_not_empty(jobs, "no SLO class says how fast answers should be; set workload.slo, or add +slo=mixed")
    names = [f"{job.case.system}, {job.case.target} {job.case.variant}, {job.column}" for job in jobs]
    for job in jobs:
        job.search.check_countable(job.case.setup.workload.slo)
    table, metrics, curves = StudyTable(), dict[str, float](), dict[str, Any]()
    layout = layout or TableLayout()
    _check_cells([(*_place(job.case, layout), job.column) for job in jobs], names)
    table_rows = [_table_row(table, _place(job.case, layout)) for job in jobs]
    found = run_jobs(jobs, names, run_capacity_job, work, progress, processes)
    for job, row, name, one in zip(jobs, table_rows, names, found, strict=True):
        row[job.column] = {"by_seed": dict(zip(job.search.seeds, one["by_seed"], strict=True))}
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
    """Measures goodput, waste, late answers and rounds by class, and decision times at given numbers of devices.

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
    table, layout = StudyTable(), layout or TableLayout("{system}, {devices}")
    places = [_place(job.case, layout, devices=job.devices) for job in jobs]
    _check_cells([(*place, str(job.seed)) for place, job in zip(places, jobs, strict=True)], names)
    table_rows = [_table_row(table, place) for place in places]
    found = run_jobs(jobs, names, run_load_test_job, work, progress, processes)
    for job, row, one in zip(jobs, table_rows, found, strict=True):
        for key, value in table_columns(one).items():
            row.setdefault(key, {"by_seed": {}})["by_seed"][job.seed] = value
    means = {
        f"{group} {row}/{key}".strip(): fmean(cell["by_seed"].values())
        for group, rows in table.items()
        for row, cells in rows.items()
        for key, cell in cells.items()
    }
    _write_json(out, rows=table, metrics=means, measured=found)


def _in_class(case: Case, one: SloClass) -> Case:
    """The case with all devices in this class."""
    workload = replace(case.setup.workload, slo=(replace(one, share=1.0),))
    return replace(case, setup=replace(case.setup, workload=workload))


def _place(case: Case, layout: TableLayout, **more: Any) -> tuple[str, str]:
    """Group and row of a job's table."""
    return case.label(layout.group, **more), case.label(layout.row, **more)


def _table_row(table: StudyTable, place: tuple[str, str]) -> dict[str, Any]:
    group, row = place
    return table.setdefault(group, {}).setdefault(row, {})


def _check_cells(cells: Sequence[tuple[str, str, str]], names: Sequence[str]) -> None:
    """Raises ValueError for two jobs with one cell, the result of the first of which would be lost."""
    known = dict[tuple[str, str, str], str]()
    for cell, name in zip(cells, names, strict=True):
        if cell in known:
            raise ValueError(
                f"layout: {known[cell]!r} and {name!r} have one place in the table, row {cell[1]!r} of group "
                f"{cell[0]!r}; name in its row or group what differs of {{system}}, {{target}}, {{variant}} and, in "
                "load tests, {devices}, and name each seed and number of devices once"
            )
        known[cell] = name


def _check_not_empty(jobs: Sequence[object], message: str) -> None:
    if not jobs:
        raise ValueError(message)


def _write_json(out: Path, **parts: Any) -> None:
    for name, content in parts.items():
        (out / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
