"""How long to wait before a question is asked again.

A server that failed is left alone for a moment.

Questions that a server will not answer: whoever asks again hears what it said, and the server hears nothing.
"""

import random
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from threading import Lock

from serving.engines.remote.errors import RemoteError
from serving.engines.remote.server import RemoteServer

RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""States in which the same question may be answered later. No other 4xx is asked again."""


def retry_delay_s(
    server: RemoteServer, attempt: int, requested_s: float | None, uniform: Callable[[], float] = random.random
) -> float:
    """A random part of the backoff (full jitter), or more where the server asked for it, within its bound."""
    backoff_s = uniform() * min(server.backoff_max_s, server.backoff_s * 2.0**attempt)
    return max(backoff_s, min(requested_s or 0.0, server.retry_after_max_s))


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """What a server asks for, in seconds or as a date; None where it says nothing that makes sense."""
    said = headers.get("retry-after", "").strip()
    try:
        seconds = float(said)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(said) - (now or datetime.now(UTC))).total_seconds()
        except (TypeError, ValueError):
            return None
    return max(0.0, seconds) if isfinite(seconds) else None


MAX_CONSECUTIVE_COOLDOWNS = 12
"""Rests in a row that are waited out: by default a minute, and whoever has not come back by then is gone."""


class CircuitBreaker:
    """
    Args:
        rest_s: how long it lasts.
        waits: for a run on virtual time, in which devices ask 64 times in a moment of ours: a question that comes
            during a rest is held back until it is over, in place of an error.
    """

    def __init__(
        self, cooldown_s: float, wait_for_cooldown: bool, sleep: Callable[[float], None], clock: Callable[[], float]
    ) -> None:
        self._cooldown_s, self._wait_for_cooldown, self._sleep, self._clock = (
            cooldown_s,
            wait_for_cooldown,
            sleep,
            clock,
        )
        self._open_until_s, self._unauthorized, self._consecutive_trips, self._lock = 0.0, False, 0, Lock()
        self.reason = ""

    def allows_request(self) -> bool:
        """May it be asked now?"""
        left_s = self._open_until_s - self._clock()
        if left_s <= 0:
            return True
        if self._unauthorized or not self._wait_for_cooldown or self._consecutive_trips > MAX_CONSECUTIVE_COOLDOWNS:
            return False
        self._sleep(left_s)
        return True

    def trip(self, reason: str, unauthorized: bool = False) -> None:
        """`unauthorized`: no question will be answered with this key, so that none is worth waiting for."""
        with self._lock:
            now = self._clock()
            self._consecutive_trips += now >= self._open_until_s  # several questions at once fail of one cause
            self.reason, self._unauthorized, self._open_until_s = reason, unauthorized, now + self._cooldown_s

    def record_success(self) -> None:
        self._consecutive_trips = 0


_MAX_TRIES = 3
"""Of a question whose answer cannot be used, where the server does not say that it refuses it."""
_MAX_SESSIONS = 1024
"""Sessions of which one is remembered; a device asks so often in a row that older ones are over."""


class NegativeCache:
    """Of each session the last question that failed for good; a device whose question fails begins it anew, and frees
    the session's caches first, so that these are no place for it.
    """

    def __init__(self) -> None:
        self._failures: dict[str, tuple[Hashable, int, RemoteError]] = {}
        self._lock = Lock()

    def check(self, session: str, question: Hashable) -> None:
        """Raises RemoteError for a question that is not asked again."""
        known, tries, problem = self._failures.get(session, (None, 0, None))
        if problem and known == question and (problem.rejected or tries >= _MAX_TRIES):
            raise RemoteError(f"{problem} (it is not asked again)", status=problem.status)

    def record(self, session: str, question: Hashable, problem: RemoteError) -> None:
        if problem.transient:
            return
        with self._lock:
            known, tries, _ = self._failures.pop(session, (None, 0, None))
            self._failures[session] = question, 1 + (tries if known == question else 0), problem
            while len(self._failures) > _MAX_SESSIONS:
                del self._failures[next(iter(self._failures))]
