"""Times an engine's work on the wall clock, and keeps what the work consisted of."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from serving.hardware.timed_executor import Engine
from serving.messages import Generate
from training.latency.accelerator import Accelerator
from training.latency.effort import FEWEST, FEWEST_HELD_OUT
from training.latency.shape import Shape
from training.latency.timing import Run, Timing
from training.latency.work import Work, Works

FIRST_SHARE = 0.3
"""Of the budget, for the first round: the three runs of WISP, appendix C, come before any configuration more."""


@dataclass
class Stopwatch:
    """Every run has sessions and random tokens of its own, so that nothing of an earlier one is reused.

    WISP, appendix C found 60 % of artificial speed-up where prompts came twice.
    """

    engine: Engine
    works: Works
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

    def warm_up(self, shapes: Sequence[Shape], budget_s: float) -> int:
        """Runs that do not count: all of them, or as many as begin within the budget; how many."""
        began = self.clock()
        for done, shape in enumerate(shapes):
            if done and self.clock() - began > budget_s:
                return done
            self._run(Timing(shape))
        return len(shapes)

    def time(self, shapes: Sequence[Shape], repeats: int, budget_s: float, told: Callable[[int], None]) -> list[Timing]:
        """All shapes, `repeats` times over: a disturbance of the machine meets few runs of any one shape.

        The budget cuts whole rounds, and the first one where it would leave no time for others. What is left is a
        first part of `shapes`, whose order is their owner's.
        """
        began = self.clock()
        timings = self._first_round(shapes, began + FIRST_SHARE * budget_s, told)
        done, a_round_s = 1, self.clock() - began
        while done < repeats and self.clock() + a_round_s <= began + budget_s:
            round_began = self.clock()
            for place, timing in enumerate(timings):
                self._run(timing)
                told(done * len(timings) + place + 1)
            done, a_round_s = done + 1, self.clock() - round_began
        return timings

    def _first_round(self, shapes: Sequence[Shape], until: float, told: Callable[[int], None]) -> list[Timing]:
        timings: list[Timing] = []
        for shape in shapes:
            if self.clock() > until and _is_enough(timings):
                break
            timings.append(Timing(shape))
            self._run(timings[-1])
            told(len(timings))
        return timings

    def _run(self, timing: Timing) -> None:
        self._runs += 1
        fills, work = self.works(timing.shape, f"run-{self._runs}", self._tokens)
        for fill in fills:
            self.engine.execute(fill)
        self.accelerator.settle()
        if self.pause_s:
            time.sleep(self.pause_s)
        began, had = self.clock(), time.process_time()
        _, timing.loads = self.engine.execute(work)
        self.accelerator.settle()
        wall_s, processor_s = self.clock() - began, time.process_time() - had
        timing.runs.append(Run(wall_s, None if self.accelerator.is_gpu else processor_s))
        self._forget(work)

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._generator.integers(self.vocabulary, size=count).tolist())

    def _forget(self, work: Work) -> None:
        if isinstance(work, Generate):
            self.engine.drop(work.session, None)
        else:
            for rows in work.rows:
                self.engine.drop(rows.session, work.span.first)


def _is_enough(timings: Sequence[Timing]) -> bool:
    held_out = sum(timing.shape.held_out for timing in timings)
    return held_out >= FEWEST_HELD_OUT and len(timings) - held_out >= FEWEST
