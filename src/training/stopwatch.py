"""Times an engine's work on the wall clock, and keeps what the work consisted of."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import numpy as np

from serving.latency import Load
from serving.messages import Forward, Generate, Rows, Span, Stop
from serving.timed import Engine
from training.shape import Shape

Tokens = Callable[[int], tuple[int, ...]]
Work = Generate | Forward
Works = Callable[[Shape, str, Tokens], tuple[list[Work], Work]]
"""(shape, name of the run, source of tokens) -> what fills the caches, what is timed."""

WARM_UPS = 10
"""Runs whose times are thrown away: WISP, appendix C."""

QUIET = 0.95


class Run(NamedTuple):
    wall_s: float
    processor_s: float
    """What this process had of the processor meanwhile."""

    @property
    def share(self) -> float:
        return self.processor_s / self.wall_s

    @property
    def quiet(self) -> bool:
        """Did nobody else take the processor away for a while?"""
        return self.share >= QUIET


@dataclass
class Timing:
    """One shape's passes, as the engine counts them, and its runs."""

    shape: Shape
    loads: tuple[Load, ...] = ()
    runs: list[Run] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        """Wall time of the middle one of the quiet runs; of the least disturbed one, where none was quiet."""
        least_disturbed = max(self.runs, key=lambda run: run.share)
        return median(run.wall_s for run in self.runs if run.quiet or run is least_disturbed)


class Stopwatch:
    """Every run has sessions and random tokens of its own, so that nothing of an earlier one is reused.

    WISP, appendix C found 60 % of artificial speed-up where prompts came twice.
    """

    def __init__(self, engine: Engine, works: Works, vocabulary: int, seed: int) -> None:
        self._engine, self._works, self._vocabulary = engine, works, vocabulary
        self._generator = np.random.default_rng(seed)
        self._runs = 0

    def time(self, shapes: Sequence[Shape], repeats: int, told: Callable[[int], None]) -> list[Timing]:
        """All shapes, `repeats` times over: a disturbance of the machine meets few runs of any one shape."""
        for shape in shapes[:WARM_UPS]:
            self._run(Timing(shape))
        timings = [Timing(shape) for shape in shapes]
        for done in range(repeats):
            for place, timing in enumerate(timings):
                self._run(timing)
                told(done * len(timings) + place + 1)
        return timings

    def _run(self, timing: Timing) -> None:
        self._runs += 1
        fills, work = self._works(timing.shape, f"run-{self._runs}", self._tokens)
        for fill in fills:
            self._engine.execute(fill)
        began, had = time.perf_counter(), time.process_time()
        _, timing.loads = self._engine.execute(work)
        timing.runs.append(Run(time.perf_counter() - began, time.process_time() - had))
        self._forget(work)

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._generator.integers(self._vocabulary, size=count).tolist())

    def _forget(self, work: Work) -> None:
        if isinstance(work, Generate):
            self._engine.drop(work.session, None)
        else:
            for rows in work.rows:
                self._engine.drop(rows.session, work.span.first)


def forwards(layers: int) -> Works:
    """Batches through all layers of a model of that depth, with greedy verdicts where something is asked."""
    span = Span(0, layers, embed=True, head=True)

    def works(shape: Shape, run: str, tokens: Tokens) -> tuple[list[Work], Work]:
        names = [f"{run}/{i}" for i in range(len(shape.parts))]
        parts = list(zip(names, shape.parts, strict=True))
        cached = [Rows(name, 0, part.cached, tokens(part.cached)) for name, part in parts if part.cached]
        rows = [
            Rows(name, cached, new, tokens(new), max(0, asked - 1), "greedy" if asked else "")
            for name, (cached, new, asked) in parts
        ]
        return [_forward(span, cached)] if cached else [], _forward(span, rows)

    return works


def _forward(span: Span, rows: Sequence[Rows]) -> Forward:
    return Forward(span, tuple(rows), ("last",) * len(rows))


def drafts(shape: Shape, run: str, tokens: Tokens) -> tuple[list[Work], Work]:
    """One session's greedy draft; the scores that a policy may ask for are not among it."""
    (part,) = shape.parts
    fill: list[Work] = [Generate(run, 0, tokens(part.cached), Stop(0))] if part.cached else []
    return fill, Generate(run, part.cached, tokens(part.new), Stop(part.asked))
