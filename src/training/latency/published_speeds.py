"""Published speeds of named chips, one measurement a row, with source and licence.

The columns of the file: chip and mode (of conf/hardware/chip; empty: the default mode), software, architecture,
precision, phase, batch, cached_tokens, new_tokens, seconds, source, licence, note. `phase` is decode (one token of
each session), prefill (a whole prompt), forward (new_tokens tokens behind a cache), or linear (the kernels of the
linear layers alone, without attention, head and process).
"""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, cast, get_args
from uuid import uuid4

from serving.hardware.architecture import Architecture, Precision
from serving.hardware.chip import Chip
from serving.hardware.error_pools import processor_of
from serving.hardware.latency import ForwardLoad, batch_load
from training.latency.benchmark_json import MAX_TOKENS, check_size

Phase = Literal["decode", "prefill", "forward", "linear"]
T = TypeVar("T")
PRECISIONS: tuple[Precision, ...] = ("fp16", "int8", "int4")
"""Of the weights; the clock's fit has no rows of 32 bits."""

COLUMNS = ("chip", "mode", "software", "architecture", "precision", "phase", "batch", "cached_tokens", "new_tokens",
           "seconds", "source", "licence", "note")  # fmt: skip


@dataclass(frozen=True)
class PublishedSpeed:
    """`seconds` of one forward of `batch` sessions with `new_tokens` new tokens each behind `cached_tokens`."""

    chip: Chip
    mode: str | None
    software: str
    architecture: Architecture
    precision: Precision
    phase: Phase
    batch: int
    cached_tokens: int
    new_tokens: int
    seconds: float
    source: str
    licence: str
    note: str

    @property
    def silicon(self) -> str:
        return processor_of(self.chip.name)

    @property
    def power_mode(self) -> str:
        return self.mode or self.chip.default_mode

    @property
    def group(self) -> tuple[str, str]:
        """What one set of figures holds for: processor and software."""
        return self.silicon, self.software

    @property
    def kind(self) -> str:
        """decode, prefill or forward of one session, linear layers alone, or a batch."""
        return self.phase if self.batch == 1 else "batch"

    @property
    def load(self) -> ForwardLoad:
        head_tokens = 0 if self.phase == "linear" else self.batch
        return batch_load(self.architecture.layers, [(self.cached_tokens, self.new_tokens)] * self.batch, head_tokens)


def row_key(speed: PublishedSpeed) -> tuple[object, ...]:
    """What two rows share that measure the same work on the same machine by the same source."""
    work = speed.precision, speed.phase, speed.batch, speed.cached_tokens, speed.new_tokens
    return speed.chip.name, speed.power_mode, speed.software, speed.architecture.name, *work, speed.source


def read_speeds(
    file: Path, chips: Mapping[str, Chip], architectures: Mapping[str, Architecture]
) -> list[PublishedSpeed]:
    """All rows of the file. Raises ValueError that names the line of a row that is not one."""
    check_size(file)
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.DictReader(lines, strict=True)
            if tuple(rows.fieldnames or ()) != COLUMNS:
                raise ValueError(f"{file.name}, line 1: the columns are {','.join(COLUMNS)}")
            return [_parse(row, f"{file.name}, line {rows.line_num}", chips, architectures) for row in rows]
    except (UnicodeDecodeError, csv.Error) as problem:
        raise ValueError(f"{file.name} is not a CSV file in UTF-8 ({problem})") from problem


def append_speeds(file: Path, speeds: Sequence[PublishedSpeed]) -> None:
    """Adds rows to a file of them, whole or not at all; a file that does not exist begins with the columns."""
    file = file.resolve()  # else a symbolic link would be replaced, and what it names stay as it was
    before = file.read_text(encoding="utf-8-sig") if file.exists() else f"{','.join(COLUMNS)}\n"
    added = io.StringIO(newline="")
    csv.writer(added, lineterminator="\n").writerows(map(_cells, speeds))
    beside = file.with_name(f".{file.name}.{uuid4().hex}")
    try:
        beside.write_text(before + "\n" * (not before.endswith("\n")) + added.getvalue(), encoding="utf-8")
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)


def _cells(speed: PublishedSpeed) -> tuple[object, ...]:
    return (
        speed.chip.name, speed.mode or "", speed.software, speed.architecture.name, speed.precision, speed.phase,
        speed.batch, speed.cached_tokens, speed.new_tokens, f"{speed.seconds:.6g}", speed.source, speed.licence,
        speed.note,
    )  # fmt: skip


def _parse(
    row: Mapping[str, str], where: str, chips: Mapping[str, Chip], architectures: Mapping[str, Architecture]
) -> PublishedSpeed:
    if None in row or None in row.values():
        raise ValueError(f"{where}: more or fewer values than the {len(COLUMNS)} columns")
    try:
        found = PublishedSpeed(
            _named(row["chip"], chips), row["mode"] or None, row["software"],
            _named(row["architecture"], architectures), cast(Precision, _one_of(row["precision"], PRECISIONS)),
            cast(Phase, _one_of(row["phase"], get_args(Phase))), int(row["batch"]), int(row["cached_tokens"]),
            int(row["new_tokens"]), float(row["seconds"]), row["source"], row["licence"], row["note"],
        )  # fmt: skip
        check_peaks_known(found.chip, found.mode)
    except ValueError as problem:
        raise ValueError(f"{where}: {problem}") from problem
    counts = found.batch, found.new_tokens, found.cached_tokens
    if min(counts[:2]) < 1 or min(counts) < 0 or max(counts) > MAX_TOKENS or not 0 < found.seconds < float("inf"):
        raise ValueError(
            f"{where}: batch and new_tokens are 1 or more, cached_tokens 0 or more, none above {MAX_TOKENS}, seconds "
            "above 0"
        )
    return found


def check_peaks_known(chip: Chip, name: str | None) -> None:
    """Raises ValueError for a mode that the chip lacks, or that has no peaks to compare a speed with."""
    mode = chip.mode(name)
    if mode.fp16_tflops is None or mode.memory_gbps is None:
        raise ValueError(
            f"chip {chip.name} has no fp16_tflops or no memory_gbps in mode {name or chip.default_mode}; the clock "
            "is a share of these peaks"
        )


def _named(name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise ValueError(f"{name!r} is unknown; known are {', '.join(sorted(known))}")
    return known[name]


def _one_of(value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{value!r} is none of {', '.join(allowed)}")
    return value
