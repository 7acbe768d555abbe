"""Retries: back-off between attempts, a circuit breaker per server, and a cache of rejected requests."""

import random
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from threading import Lock

from serving.engines.remote.errors import RemoteError
from serving.engines.remote.server import RemoteServer

RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which a retry may succeed. Other 4xx are not retried."""


def retry_delay_s(
    server: RemoteServer, attempt: int, requested_s: float | None, uniform: Callable[[], float] = random.random
) -> float:
    """A random part of the back-off (full jitter), or the server's requested delay up to its bound if longer."""
    backoff_s = uniform() * min(server.backoff_max_s, server.backoff_s * 2.0**attempt)
    return max(backoff_s, min(requested_s or 0.0, server.retry_after_max_s))


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The Retry-After header, in seconds or as a date; None if missing or invalid."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - (now or datetime.now(UTC))).total_seconds()
        except (TypeError, ValueError, OverflowError):
            return None
    return max(0.0, seconds) if isfinite(seconds) else None


MAX_CONSECUTIVE_COOLDOWNS = 12
"""Cool-downs in a row that are waited for (a minute by default); after that, requests fail at once."""


class CircuitBreaker:
    """Rejects requests for `cooldown_s` after a failure.

    Args:
        wait_for_cooldown: wait for the end of a cool-down instead of rejecting. For virtual time, where all attempts
            of a device take only a moment of real time.
    """

    def __init__(
        self, cooldown_s: float, wait_for_cooldown: bool, sleep: Callable[[float], object], clock: Callable[[], float]
    ) -> None:
        self._cooldown_s, self._wait_for_cooldown = cooldown_s, wait_for_cooldown
        self._sleep, self._clock = sleep, clock
        self._open_until_s, self._unauthorized, self._consecutive_trips, self._lock = 0.0, False, 0, Lock()
        self.reason = ""

    def allows_request(self) -> bool:
        """True if a request may be sent now."""
        left_s = self._open_until_s - self._clock()
        if left_s <= 0:
            return True
        if self._unauthorized or not self._wait_for_cooldown or self._consecutive_trips > MAX_CONSECUTIVE_COOLDOWNS:
            return False
        self._sleep(left_s)
        return True

    def trip(self, reason: str, unauthorized: bool = False) -> None:
        """`unauthorized`: the key was rejected, so that waiting does not help."""
        with self._lock:
            now = self._clock()
            self._consecutive_trips += now >= self._open_until_s  # concurrent requests fail of one cause
            self.reason, self._unauthorized, self._open_until_s = reason, unauthorized, now + self._cooldown_s

    def record_success(self) -> None:
        self._consecutive_trips = 0


_MAX_TRIES = 3
"""Attempts of a request whose response is unusable, if the server does not reject it."""
_MAX_SESSIONS = 1024
"""Sessions to remember; older ones have ended, since a device retries without pause."""


class NegativeCache:
    """The last permanently failed request of each session. Not part of the session's cache, because a device frees that
    before it retries.
    """

    def __init__(self) -> None:
        self._failures: dict[str, tuple[Hashable, int, RemoteError]] = {}
        self._lock = Lock()

    def check(self, session: str, question: Hashable) -> None:
        """Raises RemoteError for a request that is not retried."""
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
