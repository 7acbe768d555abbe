"""What was measured of one configuration.

Times an engine's work on the wall clock, and keeps what the work consisted of.

The torch device that computes: what it is called, when it is done, and what room it has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import NamedTuple

import numpy as np

from serving.hardware.executor import Engine
from serving.hardware.latency import ForwardLoad
from serving.messages import DraftWork
from training.latency.grid import MIN_FITTED, MIN_HELD_OUT, WorkShape
from training.latency.work import EngineWork, WorkBuilder

MIN_CPU_SHARE = 0.95
STEADY_VARIATION = 0.05
"""Coefficient of variation that WISP, appendix C aims below."""


class TimedRun(NamedTuple):
    wall_s: float
    cpu_s: float | None = None
    """What this process had of the processor meanwhile; None where another computes."""

    @property
    def cpu_share(self) -> float:
        return 1.0 if self.cpu_s is None else self.cpu_s / self.wall_s

    @property
    def undisturbed(self) -> bool:
        """Did nobody else take the processor away for a while?"""
        return self.cpu_share >= MIN_CPU_SHARE


@dataclass
class Timing:
    """One configuration's passes, as the engine counts them, and its runs."""

    shape: WorkShape
    loads: tuple[ForwardLoad, ...] = ()
    runs: list[TimedRun] = field(default_factory=list)

    @property
    def is_disturbed(self) -> bool:
        """Was no run quiet?"""
        return not any(run.undisturbed for run in self.runs)

    @property
    def counted_s(self) -> list[float]:
        """Wall times of the quiet runs. Where none was: what each run had of the processor, which one thread that
        computes would have needed of the wall clock too, but for caches that others emptied.
        """
        if self.is_disturbed:
            return [run.cpu_s for run in self.runs if run.cpu_s is not None]
        return [run.wall_s for run in self.runs if run.undisturbed]

    @property
    def median_s(self) -> float:
        return median(self.counted_s)

    @property
    def variation(self) -> float | None:
        """Standard deviation of the counted runs over their mean; None of a single one."""
        return pstdev(self.counted_s) / fmean(self.counted_s) if len(self.counted_s) > 1 else None

    def statistics(self) -> dict[str, float]:
        """Of the counted runs."""
        counted = self.counted_s
        return {
            "mean_s": fmean(counted),
            "deviation_s": pstdev(counted),
            "min_s": min(counted),
            "max_s": max(counted),
            "median_s": median(counted),
        }


@dataclass(frozen=True)
class Accelerator:
    """`device` is a torch device, cpu or cuda. Raises ValueError for a GPU that is not there."""

    device: str

    def __post_init__(self) -> None:
        import torch

        if self.is_gpu and not torch.cuda.is_available():
            raise ValueError(f"latency profile: accelerator={self.device}, but torch sees no GPU here; use cpu.")

    @property
    def is_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def machine_info(self) -> dict[str, str | int | bool]:
        """What a measured time depends on: processor, versions, one thread, and the GPU if it computes."""
        import torch

        from training.fitting.machine import machine_info

        found = {**machine_info(), "threads": 1, "device": self.device}
        if self.is_gpu:
            found |= {"gpu": torch.cuda.get_device_name(self.device), "cuda": str(torch.version.cuda)}
        return found

    @property
    def name(self) -> str:
        """The GPU's or the processor's."""
        found = self.machine_info()
        return str(found.get("gpu", found["processor"]))

    def synchronize(self) -> None:
        """Waits until all that was asked of a GPU is done: its work is only queued by then."""
        import torch

        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def free_nbytes(self) -> int:
        """Memory that a model may take: the GPU's free, or what the system calls available."""
        import gc

        import torch

        if self.is_gpu:
            gc.collect()
            torch.cuda.empty_cache()  # what torch keeps of an earlier model counts as taken
            return int(torch.cuda.mem_get_info(self.device)[0])
        return _available_nbytes()

    def memory_nbytes(self) -> int:
        import torch

        if self.is_gpu:
            return int(torch.cuda.get_device_properties(self.device).total_memory)
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _available_nbytes() -> int:
    path = Path("/proc/meminfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return next(found, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


FIRST_ROUND_SHARE = 0.3
"""Of the budget, for the first round: the three runs of WISP, appendix C, come before any configuration more."""


@dataclass
class WorkTimer:
    """Every run has sessions and random tokens of its own, so that nothing of an earlier one is reused.

    WISP, appendix C found 60 % of artificial speed-up where prompts came twice.
    """

    engine: Engine
    build_work: WorkBuilder
    accelerator: Accelerator
    vocabulary: int
    seed: int
    clock: Callable[[], float] = time.perf_counter
    pause_s: float = 0.0
    """Idle before each run, as a served model is between two pieces of work: caches and clock of a processor that never
    rests make a run some 10 % faster than one that had to wait for the network.
    """
    _runs: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._generator = np.random.default_rng(self.seed)

    def warm_up(self, shapes: Sequence[WorkShape], budget_s: float) -> int:
        """Runs that do not count: all of them, or as many as begin within the budget; how many."""
        began = self.clock()
        for done, shape in enumerate(shapes):
            if done and self.clock() - began > budget_s:
                return done
            self._run(Timing(shape))
        return len(shapes)

    def time_shapes(
        self, shapes: Sequence[WorkShape], repeats: int, budget_s: float, on_run: Callable[[int], None]
    ) -> list[Timing]:
        """All shapes, `repeats` times over: a disturbance of the machine meets few runs of any one shape.

        The budget cuts whole rounds, and the first one where it would leave no time for others. What is left is a
        first part of `shapes`, whose order is their owner's.
        """
        began = self.clock()
        timings = self._first_round(shapes, began + FIRST_ROUND_SHARE * budget_s, on_run)
        done, a_round_s = 1, self.clock() - began
        while done < repeats and self.clock() + a_round_s <= began + budget_s:
            round_began = self.clock()
            for place, timing in enumerate(timings):
                self._run(timing)
                on_run(done * len(timings) + place + 1)
            done, a_round_s = done + 1, self.clock() - round_began
        return timings

    def _first_round(
        self, shapes: Sequence[WorkShape], deadline_s: float, on_run: Callable[[int], None]
    ) -> list[Timing]:
        timings: list[Timing] = []
        for shape in shapes:
            if self.clock() > deadline_s and _is_enough(timings):
                break
            timings.append(Timing(shape))
            self._run(timings[-1])
            on_run(len(timings))
        return timings

    def _run(self, timing: Timing) -> None:
        self._runs += 1
        fills, work = self.build_work(timing.shape, f"run-{self._runs}", self._random_tokens)
        for fill in fills:
            self.engine.execute(fill)
        self.accelerator.synchronize()
        if self.pause_s:
            time.sleep(self.pause_s)
        began, had = self.clock(), time.process_time()
        _, timing.loads = self.engine.execute(work)
        self.accelerator.synchronize()
        wall_s, processor_s = self.clock() - began, time.process_time() - had
        timing.runs.append(TimedRun(wall_s, None if self.accelerator.is_gpu else processor_s))
        self._drop_caches(work)

    def _random_tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._generator.integers(self.vocabulary, size=count).tolist())

    def _drop_caches(self, work: EngineWork) -> None:
        if isinstance(work, DraftWork):
            self.engine.drop(work.session, None)
        else:
            for rows in work.slices:
                self.engine.drop(rows.session, work.span.start_layer)


def _is_enough(timings: Sequence[Timing]) -> bool:
    held_out = sum(timing.shape.held_out for timing in timings)
    return held_out >= MIN_HELD_OUT and len(timings) - held_out >= MIN_FITTED
