"""Download logs of the UCC 5G data set: their download rates, and the pings measured during downloads."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import ClassVar

from serving.network.rate import TrafficDirection
from serving.network.trace import CapacityCurve, CapacityTrace, LinkRecording
from serving.workload import records
from serving.workload.records import DataRecord, InvalidRecordError

_RATE_COLUMNS = ("Timestamp", "State", "DL_bitrate")


@dataclass(frozen=True, kw_only=True)
class UCC5GTrace(CapacityTrace):
    """CSV with Timestamp, State and DL_bitrate (kbit/s), one reading every one or two seconds; downlink only.

    The uplink is refused because in these logs it carries only acknowledgements, not what it could carry. Readings in
    state I (idle) are skipped for the same reason. Readings of one second are averaged; a rate holds until the next
    reading, the last one for a second. A download's rate is a lower bound of the link's capacity.
    Source: Raca et al., Beyond Throughput, the Next Generation: a 5G Dataset with Channel and Context Metrics,
    ACM MMSys 2020.
    """

    directions: ClassVar[tuple[TrafficDirection, ...]] = ("down",)

    def read(self, path: Path) -> CapacityCurve:
        seconds: dict[float, list[float]] = {}
        for at_s, row in download_rows(records.csv_records(path, _RATE_COLUMNS, ",", quoted=True)):
            seconds.setdefault(at_s, []).append(_mbps(row))
        if not seconds:
            raise InvalidRecordError(f"{path}: no reading in state D (downloading), so the log has no rate")
        until_s = [*list(seconds)[1:], list(seconds)[-1] + 1.0]
        steps = ((until, sum(rates) / len(rates)) for until, rates in zip(until_s, seconds.values(), strict=True))
        return CapacityCurve.from_steps(steps, str(path))


def download_rows(rows: Iterable[DataRecord]) -> Iterator[tuple[float, DataRecord]]:
    """Yields the rows in state D with their seconds since the first such row. Raises ValueError that names the line."""
    first = last = None
    for row in rows:
        at = _time(row)
        if last and at < last:
            raise row.error("Timestamp is earlier than the previous line; sort the log by time")
        last = at
        if row.text("State") == "D":
            first = first or at
            yield (at - first).total_seconds(), row


def _time(row: DataRecord) -> datetime:
    text = row.text("Timestamp")
    try:
        return datetime.strptime(text, "%Y.%m.%d_%H.%M.%S")
    except ValueError:
        raise row.error(f"Timestamp is {text!r:.40}, needed is a time like 2019.12.16_11.49.59") from None


def _mbps(row: DataRecord) -> float:
    kbps = row.integer("DL_bitrate")
    if kbps < 0:
        raise row.error(f"DL_bitrate is {kbps}, needed are kbit/s, 0 or more")
    return kbps / 1e3


_PING_COLUMNS = ("Timestamp", "State", "PINGAVG")


@dataclass(frozen=True)
class RecordedDelays:
    """One-way delays, each from its time until the next; the first also before its time."""

    times_s: tuple[float, ...]
    delays_s: tuple[float, ...]
    period_s: float

    @cached_property
    def mean_s(self) -> float:
        spans = pairwise((0.0, *self.times_s[1:], self.period_s))
        held = (delay_s * (end_s - start_s) for delay_s, (start_s, end_s) in zip(self.delays_s, spans, strict=True))
        return sum(held) / self.period_s

    def delay_at(self, time_s: float) -> float:
        return self.delays_s[max(0, bisect_right(self.times_s, time_s % self.period_s) - 1)]


@dataclass(frozen=True, kw_only=True)
class PingTrace(LinkRecording[RecordedDelays]):
    """CSV with Timestamp, State and PINGAVG (ms; `-` if none was taken): half a ping is each message's delay.

    A ping holds until the next one, ten to fifteen seconds later in these logs. A device starts at the same moment of
    the file as in the downlink's `UCC5GTrace`. The pings include some queueing, because a download ran.
    Source: see `UCC5GTrace`.
    """

    @property
    def mean_s(self) -> float:
        return self.data.mean_s

    @property
    def described(self) -> str:
        return f"pings of {2e3 * self.mean_s:.0f} ms on average ({self.file_name})"

    def delay(self, stream: int) -> Callable[[float], float]:
        delays, offset_s = self.data, self.start_fraction(stream) * self.data.period_s
        return lambda now: delays.delay_at(now + offset_s)

    def read(self, path: Path) -> RecordedDelays:
        rows = [*download_rows(records.csv_records(path, _PING_COLUMNS, ",", quoted=True))]
        found = {at_s: ping_ms / 2e3 for at_s, ping_ms in _measured_pings(rows)}
        if not found:
            raise InvalidRecordError(f"{path}: no ping was taken during downloads; use network.delay_ms")
        return RecordedDelays(tuple(found), tuple(found.values()), rows[-1][0] + 1.0)


def _measured_pings(rows: list[tuple[float, DataRecord]]) -> Iterator[tuple[float, float]]:
    for at_s, row in rows:
        if (text := row.text("PINGAVG")) != "-":
            yield at_s, _ping_ms(text, row)


def _ping_ms(text: str, row: DataRecord) -> float:
    try:
        ping_ms = float(text)
    except ValueError:
        ping_ms = -1.0
    if not (isfinite(ping_ms) and ping_ms >= 0):
        raise row.error(f"PINGAVG is {text!r:.40}, needed are milliseconds, 0 or more, or -")
    return ping_ms
