"""What it costs to hand work to another thread and hear of it: no fit of the engine holds that."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

HOPS = 200


def dispatch_s() -> float:
    """Median seconds from an asyncio loop to a worker thread and back, without any work."""
    return asyncio.run(_hops())


async def _hops() -> float:
    loop, found = asyncio.get_running_loop(), []
    with ThreadPoolExecutor(1) as pool:
        for _ in range(HOPS):
            began = time.perf_counter()
            await loop.run_in_executor(pool, int)
            found.append(time.perf_counter() - began)
    return median(found)
