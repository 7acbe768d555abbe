"""The JSON that a benchmark tool wrote on a user's machine, read with bounds: what arrives is checked, never trusted.

A file is a list of records, one record, or a record a line (JSON lines).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, TypeAlias

Record: TypeAlias = Mapping[str, Any]

MAX_NBYTES = 64 * 2**20
MAX_RECORDS = 10_000
MAX_SAMPLES = 1_000_000
MAX_TOKENS = 10_000_000
MIN_NUMBER, MAX_NUMBER = 1e-12, 1e18
"""Ratios of two such numbers are neither 0 nor infinite."""
MAX_TEXT = 200
MAX_SPREAD = 0.2
"""Standard deviation of the repeats over their mean: above it something else ran on the machine."""


def read_records(file: Path) -> list[Record]:
    """The records of a file, in order. Raises ValueError that names the file for what is not JSON or too large."""
    text = _read_text(file)
    try:
        found = _parse(text)
    except (ValueError, RecursionError) as problem:
        raise ValueError(
            f"{file} is no whole JSON file ({problem}). Redirect the tool's output alone (2> elsewhere) and let it end."
        ) from problem
    if not 0 < len(found) <= MAX_RECORDS or not all(isinstance(record, dict) for record in found):
        raise ValueError(f"{file}: 1 to {MAX_RECORDS} records, each a JSON object, are wanted; got {len(found)}.")
    return found


def _read_text(file: Path) -> str:
    if not file.is_file():
        raise ValueError(f"there is no file {file}.")
    try:
        check_size(file)
        return file.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise ValueError(f"{file} cannot be read: {problem.strerror}.") from problem
    except UnicodeDecodeError as problem:
        raise ValueError(f"{file} is no text in UTF-8 ({problem}).") from problem


def check_size(file: Path) -> None:
    """Raises ValueError for a file that is too large to be read."""
    if (nbytes := file.stat().st_size) > MAX_NBYTES:
        raise ValueError(f"{file} has {nbytes} bytes; at most {MAX_NBYTES} are read.")


def _parse(text: str) -> list[Any]:
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        if len(lines) < 2 or not all(line.lstrip().startswith("{") for line in lines):
            raise
        return [json.loads(line) for line in lines]
    return found if isinstance(found, list) else [found]


def number(record: Record, name: str, least: float = MIN_NUMBER) -> float:
    """A number from `least` to `MAX_NUMBER`. Raises ValueError."""
    value = _required(record, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= MAX_NUMBER:
        raise ValueError(f"{name} is {_shown(value)}; a number from {least:g} to {MAX_NUMBER:g} is wanted")
    return float(value)


def count(record: Record, name: str, most: int = MAX_TOKENS, default: int | None = None) -> int:
    """A whole number, 0 to `most`; `default` if there is none. Raises ValueError."""
    value = _required(record, name) if default is None else record.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name} is {_shown(value)}; a whole number of 0 to {most} is wanted")
    return value


def text(record: Record, name: str, default: str | None = None) -> str:
    """A text without control characters, cut at `MAX_TEXT`; `default` if there is none. Raises ValueError."""
    value = _required(record, name) if default is None else record.get(name, default)
    if not (isinstance(value, str) and len(value) <= MAX_NBYTES):
        raise ValueError(f"{name} is {_shown(value)}; a text is wanted")
    return printable(value)


def samples(record: Record, name: str) -> list[float]:
    """The list of numbers; empty if there is none. Raises ValueError."""
    values = record.get(name, [])
    if not isinstance(values, list) or len(values) > MAX_SAMPLES:
        raise ValueError(f"{name} is {_shown(values)}; a list of at most {MAX_SAMPLES} numbers is wanted")
    return [number({name: value}, name) for value in values]


def spread(values: Sequence[float]) -> float:
    """Standard deviation over mean. Raises ValueError above `MAX_SPREAD`."""
    found = pstdev(values) / fmean(values) if len(values) > 1 else 0.0
    check_spread(found)
    return found


def check_spread(found: float) -> None:
    """Raises ValueError above `MAX_SPREAD`."""
    if found > MAX_SPREAD:
        raise ValueError(
            f"the repeats differ by {100 * found:.0f} % (standard deviation over mean, at most {100 * MAX_SPREAD:.0f} "
            "%): measure again while nothing else runs"
        )


def printable(value: str) -> str:
    """The text on one line, cut at `MAX_TEXT`."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in value).split())[:MAX_TEXT]


def _required(record: Record, name: str) -> Any:
    if name not in record:
        raise ValueError(f"{name!r} is missing, as in a file of another or an older tool")
    return record[name]


def _shown(value: object) -> str:
    shown = printable(repr(value))
    return shown if len(shown) <= 60 else f"{shown[:60]}..."
