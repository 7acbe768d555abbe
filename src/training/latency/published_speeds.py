"""Published speeds of named chips, one measurement a row, with source and licence.

The columns of the file: chip and mode (of conf/hardware/chip; empty: the default mode), software, architecture,
precision, phase, batch, cached_tokens, new_tokens, seconds, source, licence, note. `phase` is decode (one token of
each session), prefill (a whole prompt), forward (new_tokens tokens behind a cache), or linear (the kernels of the
linear layers alone, without attention, head and process).
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, cast, get_args

from serving.hardware.architecture import Architecture, Precision
from serving.hardware.chip import Chip
from serving.hardware.latency import ForwardLoad, batch_load

Phase = Literal["decode", "prefill", "forward", "linear"]
T = TypeVar("T")


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
        return silicon_of(self.chip)

    @property
    def group(self) -> tuple[str, str]:
        """What one set of figures holds for: processor and software."""
        return self.silicon, self.software

    @property
    def load(self) -> ForwardLoad:
        head_tokens = 0 if self.phase == "linear" else self.batch
        return batch_load(self.architecture.layers, [(self.cached_tokens, self.new_tokens)] * self.batch, head_tokens)


def silicon_of(chip: Chip) -> str:
    """The chip's name without its memory: boards of one family share their processor."""
    words = chip.name.removesuffix("_super").split("_")
    return "_".join(word for word in words if not word.endswith("gb"))


def read_speeds(
    file: Path, chips: Mapping[str, Chip], architectures: Mapping[str, Architecture]
) -> list[PublishedSpeed]:
    """All rows of the file. Raises ValueError that names the line of a row that is not one."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines)
        return [_parse(row, f"{file.name}, line {rows.line_num}", chips, architectures) for row in rows]


def _parse(
    row: Mapping[str, str], where: str, chips: Mapping[str, Chip], architectures: Mapping[str, Architecture]
) -> PublishedSpeed:
    try:
        found = PublishedSpeed(
            _named(row["chip"], chips), row["mode"] or None, row["software"],
            _named(row["architecture"], architectures), cast(Precision, _one_of(row["precision"], get_args(Precision))),
            cast(Phase, _one_of(row["phase"], get_args(Phase))), int(row["batch"]), int(row["cached_tokens"]),
            int(row["new_tokens"]), float(row["seconds"]), row["source"], row["licence"], row["note"],
        )  # fmt: skip
        found.chip.mode(found.mode)
    except (KeyError, ValueError, TypeError) as problem:
        raise ValueError(f"{where}: {problem}") from problem
    if min(found.batch, found.new_tokens) < 1 or found.cached_tokens < 0 or not found.seconds > 0:
        raise ValueError(f"{where}: batch and new_tokens are 1 or more, cached_tokens 0 or more, seconds above 0")
    return found


def _named(name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise ValueError(f"{name!r} is unknown; known are {', '.join(sorted(known))}")
    return known[name]


def _one_of(value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{value!r} is none of {', '.join(allowed)}")
    return value
