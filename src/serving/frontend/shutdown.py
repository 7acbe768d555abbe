"""How a process learns that it should come to an end, and comes to it."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

from serving.drivers.real_time import Live


def told_to_stop() -> asyncio.Event:
    """Set at the first SIGINT or SIGTERM; a second one is not caught any more."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def told() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told)
    return stop


async def drive(live: Live, stop: asyncio.Event, wind_down: Callable[[], Awaitable[None]] | None = None) -> None:
    """Lets things happen until `stop`, and while the process winds down; raises what ended the driver before."""
    over = asyncio.Event()
    running, told = asyncio.create_task(live.run(over.is_set)), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, told}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
        if wind_down:
            await wind_down()
        over.set()
        live.stir()
        await running
