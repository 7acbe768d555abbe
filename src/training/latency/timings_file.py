"""Reads a CSV file of the user's own timings: one line per run, with the work of the run.

    model         name of an architecture of the library (conf/model/architecture)
    num_tokens    new tokens, summed over the batch: N_linear of WISP, Eq. 19
    interactions  (cached + new) x new, summed over the batch's sessions: N_interactions, WISP, Eq. 18
    cached_tokens cached tokens, summed over the batch: N_cached
    latency_s     seconds of the whole forward
    head_tokens   optional: tokens that met the LM head; without it the head's time is part of the other terms
    sessions      optional: sessions in the batch, default 1; further sessions have their own coefficient
    category      optional: errors are reported by it; default compute-bound, memory-bound or mixed

Lines that agree in all but the latency are runs of one configuration.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np

from serving.hardware.architecture import Architecture
from serving.hardware.latency import ForwardLoad
from training.latency.grid import MIN_FITTED, MIN_HELD_OUT, WorkShape
from training.latency.timing import TimedRun, Timing

REQUIRED_COLUMNS = ("model", "num_tokens", "interactions", "cached_tokens", "latency_s")
OPTIONAL_COLUMNS = ("head_tokens", "sessions", "category")
HELD_OUT_SHARE = 50 / 173
"""As in WISP, appendix C."""


class _TimingLine(NamedTuple):
    model: str
    load: ForwardLoad
    category: str
    latency_s: float


def read_timings(file: Path, architectures: Sequence[Architecture], seed: int) -> dict[str, list[Timing]]:
    """Timings by architecture, a random part of them held out.

    Raises ValueError that names the line for a malformed one, and for fewer configurations than a fit needs.
    """
    known = {architecture.name: architecture for architecture in architectures}
    found: dict[str, dict[tuple[ForwardLoad, str], Timing]] = {name: {} for name in known}
    for line in _parse_lines(file, known):
        configuration = (line.load, line.category)
        timing = found[line.model].setdefault(configuration, Timing(WorkShape(line.category, "csv"), (line.load,)))
        timing.runs.append(TimedRun(line.latency_s))
    return {name: _with_held_out(file, name, list(timings.values()), seed) for name, timings in found.items()}


def _parse_lines(file: Path, architectures: Mapping[str, Architecture]) -> Iterator[_TimingLine]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.DictReader(text, restkey="", strict=True)
            _check_header(file, reader.fieldnames or ())
            for row in reader:
                try:
                    yield _parse_line(row, architectures)
                except ValueError as problem:
                    raise ValueError(f"{file.name}, line {reader.line_num}: {problem}") from None
    except (UnicodeDecodeError, csv.Error) as problem:
        raise ValueError(f"{file.name} is not a CSV file in UTF-8 ({problem}).") from problem


def _check_header(file: Path, names: Sequence[str]) -> None:
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    unknown = [name for name in names if name not in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS)]
    if missing or unknown or len(set(names)) < len(names):
        wrong = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown) or 'a column twice'}"
        raise ValueError(
            f"{file.name}, line 1: the header {wrong}; the columns are {', '.join(REQUIRED_COLUMNS)} and, optionally, "
            f"{', '.join(OPTIONAL_COLUMNS)}."
        )


def _parse_line(row: Mapping[str, str | None], architectures: Mapping[str, Architecture]) -> _TimingLine:
    if "" in row or None in row.values():
        raise ValueError("has more or fewer values than the header has columns.")
    model = (row["model"] or "").strip()
    if model not in architectures:
        raise ValueError(f"model is {model!r}; the architectures of this profile are {', '.join(architectures)}.")
    num_tokens, interactions, cached_tokens = (
        _parse_count(row, name) for name in ("num_tokens", "interactions", "cached_tokens")
    )
    head_tokens, sessions = _parse_count(row, "head_tokens", 0), _parse_count(row, "sessions", 1)
    _check_counts(num_tokens, interactions, head_tokens, sessions)
    load = ForwardLoad(
        architectures[model].layers, num_tokens, interactions, cached_tokens, head_tokens, extra_sessions=sessions - 1
    )
    return _TimingLine(model, load, (row.get("category") or "").strip() or _regime(load), _parse_seconds(row))


def _parse_count(row: Mapping[str, str | None], name: str, default: int = 0) -> int:
    text = (row.get(name, str(default)) or "").strip()
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name} is {text!r}; a whole number, 0 or more, is wanted.")
    return int(text)


def _check_counts(num_tokens: int, interactions: int, head_tokens: int, sessions: int) -> None:
    if num_tokens < 1:
        raise ValueError("num_tokens is 0; a forward has at least one new token.")
    if interactions < num_tokens:
        raise ValueError(
            f"interactions is {interactions}, below num_tokens={num_tokens}; each new token meets itself at least."
        )
    if head_tokens > num_tokens:
        raise ValueError(f"head_tokens is {head_tokens}, above num_tokens={num_tokens}.")
    if not 1 <= sessions <= num_tokens:
        raise ValueError(
            f"sessions is {sessions}; 1 to num_tokens={num_tokens} is wanted, each session has a new token."
        )


def _parse_seconds(row: Mapping[str, str | None]) -> float:
    text = (row["latency_s"] or "").strip()
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not (isfinite(seconds) and seconds > 0):
        raise ValueError(f"latency_s is {text!r}; seconds, more than 0, are wanted.")
    return seconds


def _regime(load: ForwardLoad) -> str:
    if not load.cached_tokens:
        return "compute-bound"
    return "memory-bound" if load.cached_tokens > load.num_tokens else "mixed"


def _with_held_out(file: Path, name: str, timings: Sequence[Timing], seed: int) -> list[Timing]:
    """The timings with a random part held out."""
    least = MIN_FITTED + MIN_HELD_OUT
    if len(timings) < least:
        raise ValueError(
            f"{file.name} has {len(timings)} different configurations of {name}; {least} are needed, {MIN_FITTED} to "
            f"fit on and {MIN_HELD_OUT} to hold out. Add lines, or leave {name} out of architectures."
        )
    count = max(MIN_HELD_OUT, round(HELD_OUT_SHARE * len(timings)))
    drawn = set(np.random.default_rng(seed).permutation(len(timings))[:count].tolist())
    return [
        Timing(replace(timing.shape, held_out=place in drawn), timing.loads, timing.runs)
        for place, timing in enumerate(timings)
    ]
