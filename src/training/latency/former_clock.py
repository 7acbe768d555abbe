"""The clock that runs had before chips had measured figures, for its errors beside today's on the same rows.

Computing and reading were added up as in WISP's Eq. 19, with one share of each peak for every power mode, software and
precision, and one constant a forward. The figures are those of conf/hardware/chip at 248ec260, 2026-11-22.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from training.latency.published_speeds import PublishedSpeed

_FIGURES = ("compute_efficiency", "bandwidth_efficiency", "launch_overhead_s")


@dataclass(frozen=True)
class FormerFigures:
    """Shares of the chip's peaks, and seconds of a forward beside them."""

    compute_efficiency: float
    bandwidth_efficiency: float
    launch_overhead_s: float


@dataclass(frozen=True)
class FormerClock:
    """`figures` by chip: those of the chips that conf had then."""

    figures: Mapping[str, FormerFigures]

    @classmethod
    def read(cls, file: Path) -> "FormerClock":
        """The figures of a CSV file. Raises ValueError that names the line of a row that is none."""
        with file.open(encoding="utf-8", newline="") as lines:
            rows = csv.DictReader(lines)
            try:
                return cls({row["chip"]: FormerFigures(*(float(row[name]) for name in _FIGURES)) for row in rows})
            except (KeyError, TypeError, ValueError) as problem:
                raise ValueError(
                    f"{file.name}, line {rows.line_num}: {problem!r}; chip, {', '.join(_FIGURES)} are wanted"
                ) from problem

    def knows(self, speed: PublishedSpeed) -> bool:
        """True if conf had the chip."""
        return speed.chip.name in self.figures

    def predict_s(self, speed: PublishedSpeed) -> float:
        """Seconds of a row on a chip that it knows."""
        own, mode = self.figures[speed.chip.name], speed.chip.mode(speed.mode)
        assert mode.fp16_tflops is not None
        assert mode.memory_gbps is not None
        model, load = speed.architecture, speed.load
        weights = model.blocks_nbytes(speed.precision) + model.head_nbytes(speed.precision) * bool(load.head_tokens)
        flops = (
            2 * model.matmul_parameters * load.num_tokens
            + model.flops_per_interaction() * load.interactions
            + 2 * model.head_parameters * load.head_tokens
        )
        nbytes = weights + model.kv_nbytes_per_token(speed.precision) * load.cached_tokens
        return (
            flops / (mode.fp16_tflops * 1e12 * own.compute_efficiency)
            + nbytes / (mode.memory_gbps * 1e9 * own.bandwidth_efficiency)
            + own.launch_overhead_s
        )
