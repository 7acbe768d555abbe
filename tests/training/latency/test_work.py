"""Timed work begins after exactly the cached tokens, in a cache that need not grow."""

from __future__ import annotations

import pytest

from serving.hardware.architecture import Architecture
from serving.hardware.latency import batch_load
from training.latency.grid import MEMORY_RANDOM, MIXED, SessionShape, WorkShape
from training.latency.published import published_engine
from training.latency.timing import Accelerator
from training.latency.work import draft_work, forward_work_builder

TOY = Architecture("toy", 2, 32, 2, 2, 16, 64, 300, 0, "toy")


@pytest.fixture(scope="module")
def engine():
    return published_engine(TOY, "fp32", 256, Accelerator("cpu"))


def timed(engine, works, shape):
    """Bytes of the caches before and after the timed work, and its loads."""
    fills, work = works(shape, "run-1", lambda count: tuple(range(count)))
    for fill in fills:
        engine.execute(fill)
    before = engine.cache.nbytes
    _, loads = engine.execute(work)
    return before, engine.cache.nbytes, loads


def test_timed_batches_have_the_load_of_their_shape(engine):
    parts = (SessionShape(100, 5, 5), SessionShape(1, 1, 1), SessionShape(200, 20, 0), SessionShape(0, 9, 1))
    _, _, loads = timed(engine, forward_work_builder(2), WorkShape(MIXED, "verify", parts))
    assert loads == (batch_load(2, [(100, 5), (1, 1), (200, 20), (0, 9)], 7),)


@pytest.mark.parametrize("works", [forward_work_builder(2), draft_work])
def test_no_cache_grows_during_timing(engine, works):
    for cached in (66, 100, 130, 200):
        before, after, _ = timed(engine, works, WorkShape(MEMORY_RANDOM, "verify", (SessionShape(cached, 3, 3),)))
        assert before == after
        engine.drop("run-1", None)
        engine.drop("run-1/0", 0)


def test_timed_drafts_have_the_load_of_their_shape(engine):
    _, _, loads = timed(engine, draft_work, WorkShape(MEMORY_RANDOM, "draft", (SessionShape(50, 2, 3),)))
    assert loads == (batch_load(2, [(50, 2)], 1), batch_load(2, [(52, 1)], 1), batch_load(2, [(53, 1)], 1))
