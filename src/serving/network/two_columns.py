"""Throughput in two columns: seconds and Mbit/s."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Literal

from serving.network.trace import CapacityCurve, CapacityTrace
from serving.workload.records import InvalidRecordError, read_text

TraceLine = tuple[float, float, str]
"""Seconds, Mbit/s, and its location for error messages."""
_MAX_FIRST_STEPS = 100
"""The first rate may hold as long as this many of the longest later step: beyond, times do not count from 0."""


@dataclass(frozen=True, kw_only=True)
class TwoColumnTrace(CapacityTrace):
    """Lines of seconds and Mbit/s; the rate is a step function of time.

    `holds: until`: a line's rate holds from the previous line's time (0 for the first) until its own; the last time is
    the length of the recording. The Oboe data set is of this kind: in each of its traces the first time and rate
    multiply to the first video chunk's 1.5 Mbit.
    `holds: from`: a line's rate starts at its time. The recording starts with the first line, and the last rate holds
    as long as the one before it.
    """

    holds: Literal["until", "from"] = "until"

    def __post_init__(self) -> None:
        if self.holds not in ("until", "from"):
            raise ValueError(f"network: a trace's holds={self.holds!r} must be until or from.")
        super().__post_init__()

    def read(self, path: Path) -> CapacityCurve:
        lines = list(_lines(path))
        steps = _steps_until(lines) if self.holds == "until" else _steps_from(lines)
        return CapacityCurve.from_steps(steps, str(path))


def _lines(path: Path) -> Iterator[TraceLine]:
    last_s = -1.0
    for number, text in enumerate(read_text(path).split("\n"), 1):
        if text.strip():
            line = _line(text, f"{path} line {number}")
            if line[0] <= last_s:
                raise InvalidRecordError(f"{line[2]}: {line[0]:g} s is not after the {last_s:g} s of the previous line")
            last_s = line[0]
            yield line


def _line(text: str, where: str) -> TraceLine:
    words = text.split()
    try:
        seconds, mbps = map(float, words)
    except ValueError:
        raise InvalidRecordError(
            f"{where}: found {text.strip()!r:.60}, needed are seconds and Mbit/s, as 0.5 3.2{_hint(text)}"
        ) from None
    if not (isfinite(seconds) and isfinite(mbps) and seconds >= 0 and mbps >= 0):
        raise InvalidRecordError(f"{where}: found {text.strip()!r:.60}, needed are finite numbers of 0 or more")
    return seconds, mbps, where


def _hint(text: str) -> str:
    """What to do about a header or a separator that is no space."""
    if any(character.isalpha() for character in text):
        return "; if this is a header, remove the line"
    return "; separate them by a space, not by a comma or semicolon" if "," in text or ";" in text else ""


def _steps_until(lines: list[TraceLine]) -> list[tuple[float, float]]:
    if not lines[0][0]:
        raise InvalidRecordError(
            f"{lines[0][2]}: the first rate would hold until 0 s; with holds=from it starts there (network.*.holds)"
        )
    _check_times_count_from_0(lines)
    return [(seconds, mbps) for seconds, mbps, _ in lines]


def _check_times_count_from_0(lines: list[TraceLine]) -> None:
    first_s = lines[0][0]
    longest_s = max((later[0] - line[0] for line, later in pairwise(lines)), default=first_s)
    if first_s > _MAX_FIRST_STEPS * longest_s:
        raise InvalidRecordError(
            f"{lines[0][2]}: the first rate would hold for {first_s:.10g} s, from 0 on, and no later one for more than "
            f"{longest_s:g} s; subtract the time at which the recording began (for epoch seconds too), or give "
            "holds=from, with which it begins at the first line (network.*.holds)"
        )


def _steps_from(lines: list[TraceLine]) -> list[tuple[float, float]]:
    if len(lines) < 2:
        raise InvalidRecordError(
            f"{lines[0][2]}: one line does not tell how long its rate holds; two or more are needed"
        )
    begins_s = [seconds - lines[0][0] for seconds, _, _ in lines]
    ends_s = [*begins_s[1:], 2 * begins_s[-1] - begins_s[-2]]
    return [(end_s, mbps) for end_s, (_, mbps, _) in zip(ends_s, lines, strict=True)]
