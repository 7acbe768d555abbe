"""Records of JSON Lines, JSON and CSV files, each with its line."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from serving.workload.row import DataRecord, InvalidRecordError

_SEPARATORS = re.compile(r"[\s,]*")


def read_text(path: Path) -> str:
    """A whole UTF-8 file; ValueError if it is missing, no file, empty or in another encoding."""
    if not path.is_file():
        problem = "is a folder, needed is a file" if path.is_dir() else "does not exist"
        raise ValueError(f"{path} {problem}; set workload.path to the data set's file")
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidRecordError(f"{path} line {line}: not UTF-8 (byte 0x{data[error.start]:02x})") from None
    if not text.strip():
        raise InvalidRecordError(f"{path} line 1: the file is empty")
    return text


def json_lines(path: Path) -> Iterator[DataRecord]:
    """One object a line; blank lines are passed over."""
    # str.splitlines would also split at U+2028 and the like, which JSON allows inside a text
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            where = f"{path} line {number}"
            yield _record_of(_parse_json(line, path, number), where, number)


def json_list(path: Path) -> Iterator[DataRecord]:
    """The objects of a file that is one JSON list, each with the line on which it begins."""
    text = read_text(path)
    if not isinstance(_parse_json(text, path, 1), list):
        raise InvalidRecordError(f"{path} line 1: not a JSON list")
    yield from _elements(path, text, text.index("["), "item ")


def json_member(path: Path, name: str) -> Iterator[DataRecord]:
    """The objects of the list `name` of a file that is one JSON object, each with the line on which it begins."""
    text = read_text(path)
    whole = _record_of(_parse_json(text, path, 1), f"{path} line 1", 1)
    if not isinstance(whole.fields.get(name), list):
        has = ", ".join(whole.fields) or "nothing"
        raise whole.error(f'no list "{name}"; has: {has}')
    start = re.search(rf'"{name}"\s*:\s*\[', text)
    yield from _elements(path, text, start.end() - 1 if start else text.index("["), f"{name} ")


def csv_records(path: Path, columns: tuple[str, ...], delimiter: str, quoted: bool) -> Iterator[DataRecord]:
    """The records of a CSV or TSV file with a header that has `columns`; a record's line is the one it begins on."""
    lines = io.StringIO(read_text(path), newline="")
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    header: list[str] = []
    for number, record in _records(reader, path):
        where = f"{path} line {number}"
        if not header:
            header = _checked_header(record, columns, where)
        elif len(record) != len(header):
            raise InvalidRecordError(
                f"{where}: {len(record)} columns, the header has {len(header)} ({', '.join(header)})"
            )
        else:
            yield DataRecord(dict(zip(header, record, strict=True)), where, number)


def _records(reader: Any, path: Path) -> Iterator[tuple[int, list[str]]]:
    while True:
        number = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InvalidRecordError(
                f"{path} line {number}: not CSV ({error}; a quote that is never closed?)"
            ) from None
        if record:
            yield number, record


def _checked_header(record: list[str], columns: tuple[str, ...], where: str) -> list[str]:
    missing = [column for column in columns if column not in record]
    if missing:
        raise InvalidRecordError(f'{where}: the header has no column "{missing[0]}"; has: {", ".join(record)[:120]}')
    return record


def _parse_json(text: str, path: Path, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise InvalidRecordError(f"{path} line {line}: not JSON ({error.msg}, column {error.colno})") from None


def _record_of(value: Any, where: str, number: int) -> DataRecord:
    if not isinstance(value, dict):
        raise InvalidRecordError(f"{where}: a JSON {type(value).__name__}, needed is an object")
    return DataRecord(value, where, number)


def _elements(path: Path, text: str, bracket: int, kind: str) -> Iterator[DataRecord]:
    """The elements of the list that opens at `bracket` in a document that is known to parse; numbered from 0."""
    decoder, line, seen, index = json.JSONDecoder(), 1, 0, 0
    at = _skip(text, bracket + 1)
    while text[at] != "]":
        line, seen = line + text.count("\n", seen, at), at
        value, end = decoder.raw_decode(text, at)
        yield _record_of(value, f"{path} line {line} {kind}{index}", index)
        at, index = _skip(text, end), index + 1


def _skip(text: str, at: int) -> int:
    between = _SEPARATORS.match(text, at)
    return between.end() if between else at
