"""The download logs of the UCC 5G data set."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from serving.network.loop import Loop
from serving.network.rate import Direction
from serving.network.trace import Trace
from serving.workload import files
from serving.workload.row import BrokenRowError, Row

_COLUMNS = ("Timestamp", "State", "DL_bitrate")


@dataclass(frozen=True, kw_only=True)
class UCC5G(Trace):
    """CSV with Timestamp, State and DL_bitrate (kbit/s), one reading a second or two; downlink only.

    The uplink of these logs carries acknowledgements only and says nothing of what it could carry, so that it is
    refused. Readings in state I (idle) are left out for the same reason. Readings of one second are averaged; a rate
    holds until the next reading, the last one for a second. What a download reached is a lower bound of what the
    link could carry.
    Source: Raca et al., Beyond Throughput, the Next Generation: a 5G Dataset with Channel and Context Metrics,
    ACM MMSys 2020.
    """

    directions: ClassVar[tuple[Direction, ...]] = ("down",)

    def read(self, path: Path) -> Loop:
        seconds: dict[float, list[float]] = {}
        for at_s, row in downloading(files.table(path, _COLUMNS, ",", quoted=True)):
            seconds.setdefault(at_s, []).append(_mbps(row))
        if not seconds:
            raise BrokenRowError(f"{path}: no reading in state D, while downloading; the log says nothing of capacity")
        until_s = [*list(seconds)[1:], list(seconds)[-1] + 1.0]
        steps = ((until, sum(rates) / len(rates)) for until, rates in zip(until_s, seconds.values(), strict=True))
        return Loop.of_steps(steps, str(path))


def downloading(rows: Iterable[Row]) -> Iterator[tuple[float, Row]]:
    """The rows in state D, each with its seconds since the first of them; raises ValueError by line."""
    first = last = None
    for row in rows:
        at = _time(row)
        if last and at < last:
            raise row.broken("Timestamp is earlier than the line before; sort the log by time")
        last = at
        if row.text("State") == "D":
            first = first or at
            yield (at - first).total_seconds(), row


def _time(row: Row) -> datetime:
    text = row.text("Timestamp")
    try:
        return datetime.strptime(text, "%Y.%m.%d_%H.%M.%S")
    except ValueError:
        raise row.broken(f"Timestamp is {text!r:.40}, needed is a time like 2019.12.16_11.49.59") from None


def _mbps(row: Row) -> float:
    kbps = row.whole("DL_bitrate")
    if kbps < 0:
        raise row.broken(f"DL_bitrate is {kbps}, needed are kbit/s, 0 or more")
    return kbps / 1e3
