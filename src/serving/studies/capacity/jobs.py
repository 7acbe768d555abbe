"""The pieces that a table is made of: a capacity to be found, a steady state to be measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from serving.studies.capacity.cases import Case
from serving.studies.capacity.load_test import Measured, Steady, measure
from serving.studies.capacity.pool import Plain
from serving.studies.capacity.search import CLEARLY, Search, find

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
