"""A CSV of somebody's own timings: a line a run, with what the run consisted of.

    model         name of an architecture of the library (conf/model/architecture)
    rows          new tokens, summed over the batch: N_linear of WISP, Eq. 19
    interactions  (cached + new) x new, summed over the batch's sessions: N_interactions, WISP, Eq. 18
    cached        cached tokens, summed over the batch: N_cached
    latency_s     seconds of the whole forward
    head_rows     optional: rows that met the LM head; without it the head's time is part of the rest
    sessions      optional: whose rows these are, 1 without it; each further one has a coefficient of its own
    category      optional: what errors are reported by; without it compute-bound, memory-bound or mixed

Lines that agree in all but the latency are runs of one configuration.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np

from serving.hardware.architecture import Architecture
from serving.hardware.latency import Load
from training.latency.grid import FEWEST, FEWEST_HELD_OUT, Shape
from training.latency.timing import Run, Timing

NEEDED = ("model", "rows", "interactions", "cached", "latency_s")
OPTIONAL = ("head_rows", "sessions", "category")
HELD_OUT_SHARE = 50 / 173
"""As in WISP, appendix C."""


class _Line(NamedTuple):
    model: str
    load: Load
    category: str
    latency_s: float


def read_timings(file: Path, architectures: Sequence[Architecture], seed: int) -> dict[str, list[Timing]]:
    """Timings by architecture, some of them held out by lot.

    Raises ValueError that names the line for a malformed one, and for fewer configurations than a fit needs.
    """
    known = {architecture.name: architecture for architecture in architectures}
    found: dict[str, dict[tuple[Load, str], Timing]] = {name: {} for name in known}
    for line in _lines(file, known):
        configuration = (line.load, line.category)
        timing = found[line.model].setdefault(configuration, Timing(Shape(line.category, "csv"), (line.load,)))
        timing.runs.append(Run(line.latency_s))
    return {name: _dealt(file, name, list(timings.values()), seed) for name, timings in found.items()}


def _lines(file: Path, known: Mapping[str, Architecture]) -> Iterator[_Line]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.DictReader(text, restkey="", strict=True)
            _check_header(file, reader.fieldnames or ())
            for row in reader:
                try:
                    yield _line(row, known)
                except ValueError as problem:
                    raise ValueError(f"{file.name}, line {reader.line_num}: {problem}") from None
    except (UnicodeDecodeError, csv.Error) as problem:
        raise ValueError(f"{file.name} is not a CSV file in UTF-8 ({problem}).") from problem


def _check_header(file: Path, names: Sequence[str]) -> None:
    missing = [name for name in NEEDED if name not in names]
    unknown = [name for name in names if name not in (*NEEDED, *OPTIONAL)]
    if missing or unknown or len(set(names)) < len(names):
        wrong = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown) or 'a column twice'}"
        raise ValueError(
            f"{file.name}, line 1: the header {wrong}; the columns are {', '.join(NEEDED)} and, if you like, "
            f"{', '.join(OPTIONAL)}."
        )


def _line(row: Mapping[str, str | None], known: Mapping[str, Architecture]) -> _Line:
    if "" in row or None in row.values():
        raise ValueError("has more or fewer values than the header has columns.")
    model = (row["model"] or "").strip()
    if model not in known:
        raise ValueError(f"model is {model!r}; the architectures of this profile are {', '.join(known)}.")
    rows, interactions, cached = (_count(row, name) for name in ("rows", "interactions", "cached"))
    head_rows, sessions = _count(row, "head_rows", 0), _count(row, "sessions", 1)
    _check_counts(rows, interactions, head_rows, sessions)
    load = Load(known[model].layers, rows, interactions, cached, head_rows, further=sessions - 1)
    return _Line(model, load, (row.get("category") or "").strip() or _regime(load), _seconds(row))


def _count(row: Mapping[str, str | None], name: str, absent: int = 0) -> int:
    text = (row.get(name, str(absent)) or "").strip()
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name} is {text!r}; a whole number, 0 or more, is wanted.")
    return int(text)


def _check_counts(rows: int, interactions: int, head_rows: int, sessions: int) -> None:
    if rows < 1:
        raise ValueError("rows is 0; a forward has at least one new token.")
    if interactions < rows:
        raise ValueError(f"interactions is {interactions}, below rows={rows}; each new token meets itself at least.")
    if head_rows > rows:
        raise ValueError(f"head_rows is {head_rows}, above rows={rows}.")
    if not 1 <= sessions <= rows:
        raise ValueError(f"sessions is {sessions}; 1 to rows={rows} is wanted, each session has a new token.")


def _seconds(row: Mapping[str, str | None]) -> float:
    text = (row["latency_s"] or "").strip()
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not (isfinite(seconds) and seconds > 0):
        raise ValueError(f"latency_s is {text!r}; seconds, more than 0, are wanted.")
    return seconds


def _regime(load: Load) -> str:
    if not load.cached:
        return "compute-bound"
    return "memory-bound" if load.cached > load.rows else "mixed"


def _dealt(file: Path, name: str, timings: Sequence[Timing], seed: int) -> list[Timing]:
    """Some held out, drawn by lot."""
    least = FEWEST + FEWEST_HELD_OUT
    if len(timings) < least:
        raise ValueError(
            f"{file.name} has {len(timings)} different configurations of {name}; {least} are needed, {FEWEST} to fit "
            f"on and {FEWEST_HELD_OUT} to hold out. Add lines, or leave {name} out of architectures."
        )
    count = max(FEWEST_HELD_OUT, round(HELD_OUT_SHARE * len(timings)))
    drawn = set(np.random.default_rng(seed).permutation(len(timings))[:count].tolist())
    return [
        Timing(replace(timing.shape, held_out=place in drawn), timing.loads, timing.runs)
        for place, timing in enumerate(timings)
    ]
