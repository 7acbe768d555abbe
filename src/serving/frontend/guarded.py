"""A device that survives its own faults: one ends the session that it happened in, with its user told."""

import logging
from collections.abc import Sequence

from serving.messages import Begin, Cancelled, Command, Deliver, Event
from serving.nodes.device import Device

log = logging.getLogger(__name__)


class Guarded:
    """Handles events as `device` does; an error is logged, and what it happened in is cancelled."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def handle(self, event: Event, now: float) -> Sequence[Command]:
        try:
            return self.device.handle(event, now)
        except Exception as problem:
            session = self._concerned(event)
            log.error("session %s broke off", session, exc_info=problem)
            return self._cancelled(session, now) if session else ()

    def _concerned(self, event: Event) -> str:
        if isinstance(event, Begin):
            return event.call.session
        current = self.device.current
        return current.s.call.session if current else ""

    def _cancelled(self, session: str, now: float) -> Sequence[Command]:
        try:
            commands = self.device.handle(Cancelled(session), now)
        except Exception as problem:
            log.error("session %s could not be cancelled either", session, exc_info=problem)
            self.device.serving.pop(session, None)
            commands = ()
        ended = any(isinstance(c, Deliver) and c.session == session and c.ending for c in commands)
        return commands if ended else (*commands, Deliver(session, (), (), "failed"))
