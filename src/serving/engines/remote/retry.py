"""How long to wait before a question is asked again."""

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite

from serving.engines.remote.server import Server

RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
"""States in which the same question may be answered later. No other 4xx is asked again."""


def pause_s(server: Server, attempt: int, asked_s: float | None, uniform: Callable[[], float] = random.random) -> float:
    """A random part of the backoff (full jitter), or more where the server asked for it, within its bound."""
    backoff_s = uniform() * min(server.backoff_max_s, server.backoff_s * 2.0**attempt)
    return max(backoff_s, min(asked_s or 0.0, server.retry_after_max_s))


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
