"""Stop signals of a serving process, its orderly end, and a barrier that limits a fault to one session."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence

from serving.drivers.real_time import RealTimeDriver
from serving.messages import Command, EmitTokens, Event, RequestArrived, SessionCancelled
from serving.nodes.device import Device


def stop_signal() -> asyncio.Event:
    """An event that the first SIGINT or SIGTERM sets; a second signal has its default effect."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return stop


async def run_until_stopped(
    driver: RealTimeDriver, stop: asyncio.Event, on_shutdown: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Runs the driver until `stop` is set and `on_shutdown` has finished. Raises the error that ended the driver."""
    finished = asyncio.Event()
    running, stopping = asyncio.create_task(driver.run(finished.is_set)), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        try:
            if on_shutdown:
                await on_shutdown()
        finally:
            finished.set()
            driver.wake_up()
            await running


log = logging.getLogger(__name__)


class FaultBarrier:
    """Passes events to `device`; an error is logged, and cancels the session in which it happened."""

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
