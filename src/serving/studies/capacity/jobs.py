"""The pieces that a table is made of: a capacity to be found, a steady state to be measured.

Independent pieces of work in several processes, each kept as soon as it is done.
"""

import json
import multiprocessing as mp
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from serving.progress import Progress
from serving.studies.capacity.cases import Case
from serving.studies.capacity.load_test import Measured, Steady, measure
from serving.studies.capacity.search import CLEARLY, Search, find

T = TypeVar("T")
Plain = dict[str, Any]
"""What JSON can hold."""


def in_all(
    tasks: Sequence[T],
    names: Sequence[str],
    work: Callable[[T], Plain],
    kept: Path,
    progress: Progress,
    processes: int | None,
) -> list[Plain]:
    """What `work` makes of each task, in their order; `kept` is a folder that holds what was done before.

    `processes` None: as many as there are CPUs. Passes through what `work` raises, and KeyboardInterrupt.
    """
    files = [kept / f"{i}.json" for i in range(len(tasks))]
    left = [i for i, file in enumerate(files) if not file.is_file()]
    for done, (i, result) in enumerate(_computed(tasks, left, work, processes), len(tasks) - len(left) + 1):
        partial = files[i].with_suffix(".part")
        partial.write_text(json.dumps(result), encoding="utf-8")
        partial.replace(files[i])
        progress(done, len(tasks), names[i])
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _computed(
    tasks: Sequence[T], left: Sequence[int], work: Callable[[T], Plain], processes: int | None
) -> Iterator[tuple[int, Plain]]:
    workers = min(len(left), processes or os.cpu_count() or 1)
    if workers <= 1:
        yield from ((i, work(tasks[i])) for i in left)
        return
    with mp.get_context("spawn").Pool(workers, _ignoring_interrupts) as pool:
        yield from pool.imap_unordered(_Numbered(work), [(i, tasks[i]) for i in left])


class _Numbered:
    def __init__(self, work: Callable[[Any], Plain]) -> None:
        self._work = work

    def __call__(self, task: tuple[int, Any]) -> tuple[int, Plain]:
        return task[0], self._work(task[1])


def _ignoring_interrupts() -> None:
    """Ctrl-C reaches every process of a terminal; the parent ends its pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


NUMBERS = ("capacity", "low", "high", "decision_ms", "decision_ms_median", "decision_ms_max", "waiting_max")
"""Of each cell, for metrics.json."""


@dataclass(frozen=True)
class Cell:
    """A capacity to be found."""

    case: Case
    column: str
    search: Steady


@dataclass(frozen=True)
class Point:
    """A steady state to be measured."""

    case: Case
    devices: int
    seed: int


def searched(cell: Cell) -> Plain:
    """The capacity by seed, its interval, what deciding cost, and the curve: [seed, devices, asked, violated]."""
    case, search = cell.case, cell.search
    assert isinstance(search, Search)

    def evaluate(devices: int, seed: int) -> Measured:
        return measure(case.setup, case.outcomes, search, devices, seed, CLEARLY * search.epsilon)

    found = find(evaluate, search, case.setup.workload.slo[0].tokens_per_s)
    low, high = found.interval or (None, None)
    return {
        "by_seed": list(found.by_seed.values()),
        "capacity": found.capacity,
        "low": low,
        "high": high,
        "bounded": found.is_bounded,
        **_decisions([one.figures for one in found.measured]),
        "curve": [[one.seed, one.devices, sum(one.asked.values()), sum(one.violated.values())]
                  for one in found.measured],
    }  # fmt: skip


def _decisions(figures: Sequence[Mapping[str, float]]) -> Plain:
    """Means over runs, but for what is a maximum."""
    known = [one for one in figures if "decision_ms" in one]
    return {
        name: (max if name.endswith("max") else fmean)([one[name] for one in known]) if known else 0.0
        for name in ("decision_ms", "decision_ms_median", "decision_ms_max", "waiting_max")
    }


def measured(point: Point) -> Plain:
    """The fields of `Measured`."""
    case = point.case
    return measure(case.setup, case.outcomes, case.measure, point.devices, point.seed).plain()


def columns(one: Mapping[str, Any]) -> dict[str, float]:
    """A number for each column of a table."""
    asked, violated = one["asked"], one["violated"]
    found = dict(one["figures"])
    found |= {f"violated/{name}": violated[name] / count for name, count in asked.items()}
    found |= {f"speed/{name}": value for name, value in one["speeds"].items()}
    return found | {"violated": Measured(**one).rate}


def interval(one: Mapping[str, Any]) -> str:
    """For people; says where the search was stopped by its limit."""
    text = f"{one['low']:.0f} to {one['high']:.0f}" if one["low"] is not None else "one seed"
    return f"{text}, stopped at the limit" if one["bounded"] else text
