"""Timed runs have fresh sessions, leave no state, and end with their budget."""

from __future__ import annotations

from itertools import pairwise

import pytest

from serving.hardware.latency import batch_load
from serving.messages import ForwardWork
from training.latency.timing import Accelerator, TimedRun, Timing, WorkTimer
from training.latency.work import DRAFT_GRID, FORWARD_GRID, draft_work, forward_work_builder


class Listener:
    """An engine that only remembers what it was given, and whose work takes `seconds` of its own clock."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.heard, self.held = [], set()
        self.now, self.seconds = 0.0, seconds

    def execute(self, work):
        self.heard.append(work)
        self.now += self.seconds
        names = [rows.session for rows in work.slices] if isinstance(work, ForwardWork) else [work.session]
        self.held |= set(names)
        return (), (batch_load(8, [(0, 1)]),)

    def drop(self, session, first):
        self.held.discard(session)

    def move(self, session, to):
        raise NotImplementedError

    def copy(self, session, to, length):
        raise NotImplementedError


def timed(engine, shapes, works=draft_work, warm_ups=0, repeats=7, budget_s=1e9):
    told = []
    watch = WorkTimer(engine, works, Accelerator("cpu"), 50_000, 0, clock=lambda: engine.now)
    watch.warm_up(shapes[:warm_ups], budget_s)
    return watch.time_shapes(shapes, repeats, budget_s, told.append), told


PROMPTS = [shape for shape in DRAFT_GRID.shapes(123, 50, 256, 0) if shape.kind == "prompt"]
"""Work without anything to fill before: one execution each."""


@pytest.mark.parametrize(("works", "catalogue"), [(forward_work_builder(8), FORWARD_GRID), (draft_work, DRAFT_GRID)])
def test_every_run_has_its_own_sessions_and_tokens_and_leaves_nothing(works, catalogue):
    engine = Listener(1.0)
    timings, told = timed(engine, catalogue.shapes(12, 6, 256, 0), works, warm_ups=10, repeats=3)
    assert [len(timing.runs) for timing in timings] == [3] * 18
    assert told == list(range(1, 55))
    assert not engine.held
    texts = [rows.tokens for work in engine.heard for rows in getattr(work, "slices", ())]
    texts += [work.input_tokens for work in engine.heard if not isinstance(work, ForwardWork)]
    long = sorted(text for text in texts if len(text) > 8)
    assert long
    assert all(a != b for a, b in pairwise(long))


def test_the_wall_time_counts_where_several_threads_wait_for_each_other():
    engine = Listener(1.0)
    watch = WorkTimer(engine, draft_work, Accelerator("cpu"), 256, 0, clock=lambda: engine.now, threads=2)
    (timing,) = watch.time_shapes(PROMPTS[:1], 3, 1e9, lambda done: None)
    assert timing.counted_s == [1.0] * 3
    assert all(run.cpu_s is None for run in timing.runs)


def test_warm_ups_are_not_among_the_runs():
    engine = Listener(1.0)
    timings, _ = timed(engine, PROMPTS, warm_ups=10, repeats=1)
    assert len(engine.heard) == 10 + len(timings)
    assert {run.wall_s for timing in timings for run in timing.runs} == {1.0}


def test_warm_ups_end_with_their_budget_but_there_is_one():
    engine = Listener(1.0)
    watch = WorkTimer(engine, draft_work, Accelerator("cpu"), 256, 0, clock=lambda: engine.now)
    assert [watch.warm_up(PROMPTS[:10], budget_s) for budget_s in (0.0, 4.5, 1e9)] == [1, 5, 10]


def test_repeats_end_with_the_budget_in_whole_rounds():
    engine = Listener(1.0)
    timings, told = timed(engine, PROMPTS, repeats=7, budget_s=3.5 * len(PROMPTS))
    assert [len(timing.runs) for timing in timings] == [3] * len(PROMPTS)
    assert told[-1] == 3 * len(PROMPTS)


def test_a_slow_machine_leaves_configurations_out_but_keeps_three_rounds_and_what_a_fit_needs():
    shapes = DRAFT_GRID.shapes(123, 50, 256, 0)
    engine = Listener(1.0)
    timings, _ = timed(engine, shapes, budget_s=500.0)
    assert [timing.shape for timing in timings] == shapes[: len(timings)]
    assert 50 < len(timings) < 100
    assert len(timings[0].runs) == 3
    slowest, _ = timed(Listener(1000.0), shapes, budget_s=500.0)
    assert sum(timing.shape.held_out for timing in slowest) == 6
    assert sum(not timing.shape.held_out for timing in slowest) >= 12
    assert len(slowest[0].runs) == 1


def test_runs_that_were_interrupted_count_by_their_processor_time_and_only_where_no_other_is_left():
    disturbed, quiet = (
        [TimedRun(5.0, 2.0), TimedRun(4.0, 3.0), TimedRun(9.0, 3.5)],
        [TimedRun(1.0, 1.0), TimedRun(1.2, 1.19)],
    )
    shape = PROMPTS[0]
    assert Timing(shape, runs=disturbed + quiet).median_s == pytest.approx(1.1)
    assert Timing(shape, runs=disturbed).median_s == 3.0
    assert Timing(shape, runs=disturbed).is_disturbed
    assert Timing(shape, runs=[TimedRun(1.0), TimedRun(2.0), TimedRun(6.0)]).median_s == 2.0


def test_the_statistics_are_those_of_the_counted_runs():
    timing = Timing(PROMPTS[0], runs=[TimedRun(1.0, 1.0), TimedRun(3.0, 3.0), TimedRun(50.0, 1.0)])
    expected = {"mean_s": 2.0, "deviation_s": 1.0, "min_s": 1.0, "max_s": 3.0, "median_s": 2.0}
    assert timing.statistics() == expected
    assert timing.variation == 0.5
    assert Timing(PROMPTS[0], runs=[TimedRun(1.0, 1.0), TimedRun(50.0, 1.0)]).variation is None


def test_timing_on_a_missing_gpu_is_refused():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ValueError, match="accelerator=cuda, but torch sees no GPU here"):
        Accelerator("cuda")


def test_on_a_gpu_processor_time_does_not_mark_disturbed_runs():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU here: nothing to synchronise with")
    gpu = Accelerator("cuda")
    timings = WorkTimer(Listener(), draft_work, gpu, 256, 0).time_shapes(PROMPTS[:1], 1, 1e9, lambda done: None)
    assert timings[0].runs[0].cpu_s is None
    assert gpu.machine_info()["gpu"] == gpu.name
    assert 0 < gpu.free_nbytes() <= gpu.memory_nbytes()
