"""How a process learns that it should come to an end."""

import asyncio
import signal
from collections.abc import Callable


def told_to_stop(hear: Callable[[], None]) -> asyncio.Event:
    """Set, and `hear` called, at the first SIGINT or SIGTERM; a second one is not caught any more."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def told() -> None:
        stop.set()
        hear()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told)
    return stop
