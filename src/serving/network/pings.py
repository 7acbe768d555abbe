"""The delays that the logs of the UCC 5G data set measured while they downloaded."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from serving.network.recording import Recording
from serving.network.ucc_5g import downloading
from serving.workload import files
from serving.workload.row import BrokenRowError, Row

_COLUMNS = ("Timestamp", "State", "PINGAVG")


@dataclass(frozen=True)
class Delays:
    """One-way seconds from each moment on, until the recording's end; the first also before it."""

    times_s: tuple[float, ...]
    delays_s: tuple[float, ...]
    period_s: float

    def at(self, now: float) -> float:
        return self.delays_s[max(0, bisect_right(self.times_s, now % self.period_s) - 1)]


@dataclass(frozen=True, kw_only=True)
class Pings(Recording[Delays]):
    """CSV with Timestamp, State and PINGAVG (ms; `-` where none was taken): half of a ping is each message's delay.

    A ping holds until the next one, ten to fifteen seconds later in these logs. Over the same file as the downlink's
    `UCC5G` it is entered at the same moment. The pings were taken beside a download, so that they hold some queueing.
    Source: see `UCC5G`.
    """

    @property
    def described(self) -> str:
        mean_s = sum(self.content.delays_s) / len(self.content.delays_s)
        return f"pings of {2e3 * mean_s:.0f} ms on average ({self.file})"

    def delay(self, stream: int) -> Callable[[float], float]:
        delays, offset_s = self.content, self.share(stream) * self.content.period_s
        return lambda now: delays.at(now + offset_s)

    def read(self, path: Path) -> Delays:
        rows = [*downloading(files.table(path, _COLUMNS, ",", quoted=True))]
        found = {at_s: ping_ms / 2e3 for at_s, ping_ms in _taken(rows)}
        if not found:
            raise BrokenRowError(f"{path}: no ping was taken while downloading; use network.delay_ms")
        return Delays(tuple(found), tuple(found.values()), rows[-1][0] + 1.0)


def _taken(rows: list[tuple[float, Row]]) -> Iterator[tuple[float, float]]:
    for at_s, row in rows:
        if (text := row.text("PINGAVG")) != "-":
            yield at_s, _ping_ms(text, row)


def _ping_ms(text: str, row: Row) -> float:
    try:
        ping_ms = float(text)
    except ValueError:
        ping_ms = -1.0
    if not (isfinite(ping_ms) and ping_ms >= 0):
        raise row.broken(f"PINGAVG is {text!r:.40}, needed are milliseconds, 0 or more, or -")
    return ping_ms
