"""How a process learns that it should come to an end, and comes to it.

A device that survives its own faults: one ends the session that it happened in, with its user told.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence

from serving.drivers.real_time import RealTimeDriver
from serving.messages import Command, EmitTokens, Event, RequestArrived, SessionCancelled
from serving.nodes.device import Device


def stop_signal() -> asyncio.Event:
    """Set at the first SIGINT or SIGTERM; a second one is not caught any more."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def told() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told)
    return stop


async def run_until_stopped(
    driver: RealTimeDriver, stop: asyncio.Event, on_shutdown: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Lets things happen until `stop`, and while the process winds down; raises what ended the driver before."""
    over = asyncio.Event()
    running, told = asyncio.create_task(driver.run(over.is_set)), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, told}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
        if on_shutdown:
            await on_shutdown()
        over.set()
        driver.wake_up()
        await running


log = logging.getLogger(__name__)


class FaultBarrier:
    """Handles events as `device` does; an error is logged, and what it happened in is cancelled."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def handle(self, event: Event, now: float) -> Sequence[Command]:
        try:
            return self.device.handle(event, now)
        except Exception as problem:
            session = self._affected_session(event)
            log.error("session %s broke off", session, exc_info=problem)
            return self._cancel_session(session, now) if session else ()

    def _affected_session(self, event: Event) -> str:
        if isinstance(event, RequestArrived):
            return event.request.session
        current = self.device.active_requester
        return current.session.request.session if current else ""

    def _cancel_session(self, session: str, now: float) -> Sequence[Command]:
        try:
            commands = self.device.handle(SessionCancelled(session), now)
        except Exception as problem:
            log.error("session %s could not be cancelled either", session, exc_info=problem)
            self.device.active.pop(session, None)
            commands = ()
        ended = any(isinstance(c, EmitTokens) and c.session == session and c.ending for c in commands)
        return commands if ended else (*commands, EmitTokens(session, (), (), "failed"))
