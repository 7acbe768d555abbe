"""Mahimahi's packet-delivery traces."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from serving.network.trace import CapacityCurve, CapacityTrace
from serving.workload.records import InvalidRecordError, read_text

PACKET_NBYTES = 1500
_MBPS = PACKET_NBYTES * 8e-3
"""Rate of one packet per millisecond."""


@dataclass(frozen=True, kw_only=True)
class MahimahiTrace(CapacityTrace):
    """Each line is a delivery opportunity: the millisecond in which 1,500 bytes can leave; lines may repeat.

    As in mm-link, the last time is the period (so a 0 is the end of the previous lap), the bytes of several messages
    share an opportunity, and an unused opportunity is lost. The bytes of an opportunity leave evenly during the
    millisecond that ends at its time: a whole packet leaves when mm-link would deliver it, a smaller message at most a
    millisecond earlier.
    Source: Netravali et al., Mahimahi: Accurate Record-and-Replay for HTTP, USENIX ATC 2015 (LinkShell).
    """

    def read(self, path: Path) -> CapacityCurve:
        counts, last_ms = Counter[int](), 0
        for number, text in _numbered_lines(path):
            last_ms = _milliseconds(text, last_ms, f"{path} line {number}")
            counts[last_ms] += 1
        if not last_ms:
            raise InvalidRecordError(
                f"{path} line {number}: the last time, which is the period, is 0; 1 ms or more is needed"
            )
        counts[last_ms] += counts.pop(0, 0)
        return CapacityCurve.from_steps(_steps(counts), str(path))


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if text := line.strip():
            yield number, text


def _milliseconds(text: str, last_ms: int, where: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise InvalidRecordError(f"{where}: found {text!r:.60}, needed is one time in whole milliseconds, as 1500")
    if int(text) < last_ms:
        raise InvalidRecordError(
            f"{where}: {text} ms is before the {last_ms} ms of the previous line; sort the file by time"
        )
    return int(text)


def _steps(counts: Counter[int]) -> Iterator[tuple[float, float]]:
    """Yields (until second, Mbit/s) from packets per millisecond, in order of time."""
    before_ms = 0
    for ms, packets in counts.items():
        if ms - 1 > before_ms:
            yield (ms - 1) / 1e3, 0.0
        yield ms / 1e3, packets * _MBPS
        before_ms = ms
