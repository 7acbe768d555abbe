"""Times an engine's work on the wall clock: the timer, the timings of one configuration, and the device."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, pstdev
from typing import NamedTuple

import numpy as np

from native import machine
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
    """CPU time of this process in the run; None if a GPU or several threads compute."""

    @property
    def cpu_share(self) -> float:
        return 1.0 if self.cpu_s is None else self.cpu_s / self.wall_s

    @property
    def undisturbed(self) -> bool:
        """True if this process had the CPU for nearly the whole run."""
        return self.cpu_share >= MIN_CPU_SHARE


@dataclass
class Timing:
    """One configuration's forwards, as the engine counts them, and its runs."""

    shape: WorkShape
    loads: tuple[ForwardLoad, ...] = ()
    runs: list[TimedRun] = field(default_factory=list)

    @property
    def is_disturbed(self) -> bool:
        """True if no run was undisturbed."""
        return not any(run.undisturbed for run in self.runs)

    @property
    def counted_s(self) -> list[float]:
        """Wall times of the undisturbed runs; if there is none, the CPU time of every run.

        The CPU time is the wall time that one computing thread needs, apart from caches that other processes evicted.
        """
        if self.is_disturbed:
            return [run.cpu_s for run in self.runs if run.cpu_s is not None]
        return [run.wall_s for run in self.runs if run.undisturbed]

    @property
    def median_s(self) -> float:
        return median(self.counted_s)

    @property
    def variation(self) -> float | None:
        """Standard deviation over mean of the counted runs; None for a single run."""
        return pstdev(self.counted_s) / fmean(self.counted_s) if len(self.counted_s) > 1 else None

    def statistics(self) -> dict[str, float]:
        """Statistics of the counted runs."""
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
    """The torch device that computes, cpu or cuda. Raises ValueError for a missing GPU."""

    device: str

    def __post_init__(self) -> None:
        import torch

        if self.is_gpu and not torch.cuda.is_available():
            raise ValueError(f"latency profile: accelerator={self.device}, but torch sees no GPU here; use cpu.")

    @property
    def is_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def machine_info(self) -> dict[str, str | int | bool]:
        """Facts that measured times depend on: processor, versions, one thread, and the GPU if it computes."""
        import torch

        from training.fitting.machine import machine_info

        found = {**machine_info(), "threads": 1, "device": self.device}
        if self.is_gpu:
            found |= {"gpu": torch.cuda.get_device_name(self.device), "cuda": str(torch.version.cuda)}
        return found

    @property
    def name(self) -> str:
        """Name of the GPU or the processor."""
        found = self.machine_info()
        return str(found.get("gpu", found["processor"]))

    def use_threads(self, count: int) -> None:
        import torch

        torch.set_num_threads(count)

    def synchronize(self) -> None:
        """Waits until a GPU has finished its queued work."""
        import torch

        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def free_nbytes(self) -> int:
        """Memory that a model may take: the GPU's free memory, or the system's available memory."""
        import gc

        import torch

        if self.is_gpu:
            gc.collect()
            torch.cuda.empty_cache()  # memory that torch caches counts as taken
            return int(torch.cuda.mem_get_info(self.device)[0])
        return machine.free_nbytes()

    def memory_nbytes(self) -> int:
        import torch

        if self.is_gpu:
            return int(torch.cuda.get_device_properties(self.device).total_memory)
        return machine.memory_nbytes()


FIRST_ROUND_SHARE = 0.3
"""Share of the budget for the first round, so that three runs (WISP, appendix C) come before more configurations."""


@dataclass
class WorkTimer:
    """Times shapes. Every run has its own sessions and random tokens, so that nothing of an earlier run is reused.

    WISP, appendix C found an artificial speed-up of 60 % for repeated prompts.
    """

    engine: Engine
    build_work: WorkBuilder
    accelerator: Accelerator
    vocabulary: int
    seed: int
    clock: Callable[[], float] = time.perf_counter
    pause_s: float = 0.0
    """Idle time before each run, as a served model has between two pieces of work. Without it, warm caches and a high
    clock make a run some 10 % faster than a served one.
    """
    threads: int = 1
    """CPU threads that compute. With several, wall times count, disturbed or not: threads wait for each other, so that
    their CPU time is no measure of a run.
    """
    _runs: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._generator = np.random.default_rng(self.seed)

    def warm_up(self, shapes: Sequence[WorkShape], budget_s: float) -> int:
        """Runs shapes without counting them, as many as begin within the budget; returns their number."""
        began = self.clock()
        for done, shape in enumerate(shapes):
            if done and self.clock() - began > budget_s:
                return done
            self._run(Timing(shape))
        return len(shapes)

    def time_shapes(
        self, shapes: Sequence[WorkShape], repeats: int, budget_s: float, on_run: Callable[[int], None]
    ) -> list[Timing]:
        """Times all shapes in `repeats` rounds, so that a disturbance of the machine meets few runs of any one shape.

        The budget cuts whole rounds, and the first round if it would leave no time for others. The timings are then
        those of the first part of `shapes`.
        """
        began = self.clock()
        timings = self._first_round(shapes, began + FIRST_ROUND_SHARE * budget_s, on_run)
        done, round_s = 1, self.clock() - began
        while done < repeats and self.clock() + round_s <= began + budget_s:
            round_began = self.clock()
            for place, timing in enumerate(timings):
                self._run(timing)
                on_run(done * len(timings) + place + 1)
            done, round_s = done + 1, self.clock() - round_began
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
        began, cpu_began = self.clock(), time.process_time()
        _, timing.loads = self.engine.execute(work)
        self.accelerator.synchronize()
        wall_s, cpu_s = self.clock() - began, time.process_time() - cpu_began
        known = self.threads == 1 and not self.accelerator.is_gpu
        timing.runs.append(TimedRun(wall_s, cpu_s if known else None))
        self._drop_caches(work)

    def _random_tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._generator.integers(self.vocabulary, size=count).tolist())

    def _drop_caches(self, work: EngineWork) -> None:
        if isinstance(work, DraftWork):
            self.engine.drop(work.session, None)
        else:
            for each in work.slices:
                self.engine.drop(each.session, work.span.start_layer)


def _is_enough(timings: Sequence[Timing]) -> bool:
    held_out = sum(timing.shape.held_out for timing in timings)
    return held_out >= MIN_HELD_OUT and len(timings) - held_out >= MIN_FITTED
