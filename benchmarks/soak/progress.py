"""What the soak shows while it runs: its part, and how far that is."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from pipeline.artifacts.progress_display import StageObserver
from pipeline.artifacts.stage import Stage

_INTERVAL_S = 0.5

PartProgress = Callable[[float], tuple[int, int, str]]
"""(done, total, note) so many seconds after the part began; a total of 0 is unknown."""


@asynccontextmanager
async def shown_part(display: StageObserver, name: str, progress: PartProgress) -> AsyncIterator[None]:
    """Shows one part of the soak as the pipeline shows a stage."""
    stage, started_s = Stage(name, "benchmarks.soak", {}), time.monotonic()
    display.stage_started(stage)
    ticking = asyncio.ensure_future(_tick(display, progress))
    try:
        yield
    except BaseException:
        display.stage_failed(stage, "stopped")
        raise
    else:
        display.stage_finished(stage, time.monotonic() - started_s)
    finally:
        ticking.cancel()


async def _tick(display: StageObserver, progress: PartProgress) -> None:
    started_s = time.monotonic()
    while True:
        display.progress(*progress(time.monotonic() - started_s))
        await asyncio.sleep(_INTERVAL_S)
