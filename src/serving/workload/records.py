"""Records of JSON Lines, JSON and CSV files and of the Hugging Face Hub, with their locations for error messages."""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

_INTEGER = re.compile(r"-?\d{1,400}")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
"""A lone surrogate, which JSON can spell and UTF-8 cannot: no tokenizer takes it."""


class InvalidRecordError(ValueError):
    """An unusable record; the message starts with file and line."""


@dataclass(frozen=True)
class DataRecord:
    """`location` is file and line, or Hub data set and index, for error messages; `index` is that line or index.

    Every accessor raises InvalidRecordError if the field is missing or of another type.
    """

    fields: Mapping[str, Any]
    location: str
    index: int

    def has(self, name: str) -> bool:
        return name in self.fields

    def text(self, name: str, *others: str, blank: bool = False) -> str:
        """The first of the named fields that is present; blank text only if `blank` allows it."""
        field = next((field for field in (name, *others) if field in self.fields), name)
        value = self._value(field, str, "a text")
        if not blank and not value.strip():
            raise self.error(f'field "{field}" is empty')
        return self._encodable(field, value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A non-empty list of texts."""
        values = self._value(name, list, "a list of texts")
        if not values or not all(isinstance(value, str) for value in values):
            raise self.error(f'field "{name}" is {values!r:.60}, needed is a list of texts with at least one')
        return tuple(self._encodable(name, value) for value in values)

    def integer(self, name: str) -> int:
        """An integer, or a text that spells one."""
        value = self.fields.get(name)
        if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
            return int(value)
        return int(self._value(name, int, "a whole number"))

    def nested(self, name: str) -> "DataRecord":
        return DataRecord(self._value(name, dict, "an object"), f"{self.location} {name}", self.index)

    def records(self, name: str) -> "Iterator[DataRecord]":
        """The objects of a nested list."""
        for index, value in enumerate(self._value(name, list, "a list of objects")):
            location = f"{self.location} {name}[{index}]"
            if not isinstance(value, dict):
                raise InvalidRecordError(f"{location}: {_type_name(value)}, needed is an object")
            yield DataRecord(value, location, self.index)

    def error(self, reason: str) -> InvalidRecordError:
        return InvalidRecordError(f"{self.location}: {reason}")

    def _encodable(self, name: str, value: str) -> str:
        if half := _HALF_CHARACTER.search(value):
            raise self.error(
                f'field "{name}" has half of a character, \\u{ord(half[0]):x}; correct it, or leave it out'
            )
        return value

    def _value(self, name: str, kind: type, needed: str) -> Any:
        if name not in self.fields:
            raise self.error(f'no field "{name}"; has: {", ".join(map(str, self.fields)) or "nothing"}')
        value = self.fields[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.error(f'field "{name}" is {_type_name(value)}, needed is {needed}')
        return value


def _type_name(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), type(value).__name__)


_SEPARATORS = re.compile(r"[\s,:]*")


def read_text(path: Path) -> str:
    """Reads a UTF-8 file. Raises ValueError if it is missing, a folder, empty or in another encoding."""
    with _opened(path, "") as file:
        return file.read()


def file_stamp(path: Path) -> tuple[int, int] | None:
    """Time of modification in ns, and size in bytes: another pair for a file that changed. None without the file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def check_file(path: Path, option: str) -> None:
    """Raises ValueError that names the `option` to set if there is no such file."""
    if not path.is_file():
        problem = "is a folder, needed is a file" if path.is_dir() else "does not exist"
        raise ValueError(f"{path} {problem}; set {option}=FILE")


@contextmanager
def _opened(path: Path, newline: str) -> Iterator[TextIO]:
    """Opens the file; `newline` is that of `open`. Raises ValueError as `read_text` does; where a line is not UTF-8,
    once that line is read.
    """
    check_file(path, "workload.path")
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            if not any(line.strip() for line in file):
                raise InvalidRecordError(f"{path} line 1: the file is empty")
            file.seek(0)
            yield file
    except UnicodeDecodeError as error:
        raise _other_encoding(path) or error from None


def _other_encoding(path: Path) -> InvalidRecordError | None:
    """Names the first line that is not UTF-8; None if there is none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return InvalidRecordError(f"{path} line {number}: not UTF-8 (byte 0x{line[error.start]:02x})")
    return None


def json_lines(path: Path) -> Iterator[DataRecord]:
    """Yields one object per line as the file is read; blank lines are skipped."""
    # str.splitlines would also split at U+2028 and the like, which JSON allows inside a text
    with _opened(path, "\n") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                where = f"{path} line {number}"
                yield _record_of(_parse_json(line.removesuffix("\n"), path, number), where, number)


def json_list(path: Path) -> Iterator[DataRecord]:
    """Yields the objects of a JSON list, each with the line on which it starts."""
    text = read_text(path)
    if not isinstance(_parse_json(text, path, 1), list):
        raise InvalidRecordError(f"{path} line 1: not a JSON list")
    yield from _elements(path, text, text.index("["), "item ")


def json_member(path: Path, name: str) -> Iterator[DataRecord]:
    """Yields the objects of the list `name` of a JSON object, each with the line on which it starts."""
    text = read_text(path)
    whole = _record_of(_parse_json(text, path, 1), f"{path} line 1", 1)
    if not isinstance(whole.fields.get(name), list):
        has = ", ".join(whole.fields) or "nothing"
        raise whole.error(f'no list "{name}"; has: {has}')
    yield from _elements(path, text, _member_start(text, name), f"{name} ")


def csv_records(path: Path, columns: tuple[str, ...], delimiter: str, quoted: bool) -> Iterator[DataRecord]:
    """Yields the records of a CSV or TSV file whose header has `columns`, as the file is read; a record's line is the
    one on which it starts.
    """
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    header: list[str] = []
    with _opened(path, "") as file:
        for number, record in _records(csv.reader(file, delimiter=delimiter, quoting=quoting, strict=True), path):
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
                f"{path} line {number}: not CSV, or a field of more than {csv.field_size_limit():,} characters "
                f"({error}; a quote that is never closed?)"
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
    except (ValueError, RecursionError) as error:
        what = "a number of too many digits" if isinstance(error, ValueError) else "lists or objects nested too deeply"
        raise InvalidRecordError(f"{path} line {first_line}: JSON with {what}") from None


def _record_of(value: Any, where: str, number: int) -> DataRecord:
    if not isinstance(value, dict):
        raise InvalidRecordError(f"{where}: a JSON {type(value).__name__}, needed is an object")
    return DataRecord(value, where, number)


def _elements(path: Path, text: str, bracket: int, kind: str) -> Iterator[DataRecord]:
    """Yields the elements of the list that opens at `bracket` in valid JSON, numbered from 0."""
    decoder, line, seen, index = json.JSONDecoder(), 1, 0, 0
    at = _skip(text, bracket + 1)
    while text[at] != "]":
        line, seen = line + text.count("\n", seen, at), at
        value, end = decoder.raw_decode(text, at)
        yield _record_of(value, f"{path} line {line} {kind}{index}", index)
        at, index = _skip(text, end), index + 1


def _member_start(text: str, name: str) -> int:
    """Where the value of the member `name` of a valid JSON object starts; of a repeated name the last, as `json` reads
    it.
    """
    decoder, start = json.JSONDecoder(), 0
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        key, end = decoder.raw_decode(text, at)
        at = _skip(text, end)
        start = at if key == name else start
        at = _skip(text, decoder.raw_decode(text, at)[1])
    return start


def _skip(text: str, at: int) -> int:
    between = _SEPARATORS.match(text, at)
    return between.end() if between else at


_LOCAL_COPY_ADVICE = "set workload.path=FILE to read a local copy"


def hub_records(
    name: str, config: str | None, split: str, revision: str | None, columns: tuple[str, ...]
) -> Iterator[DataRecord]:
    """Streams one split; fetches only `columns` if any are given (HeySQuAD also holds audio).

    Raises ValueError if the optional package `datasets` is not installed, or the Hub is unreachable or refuses.
    """
    where = f"{name} {split}" if revision is None else f"{name}@{revision} {split}"
    for index, fields in enumerate(_fetch(name, config, split, revision, columns)):
        yield DataRecord(fields, f"{where} row {index}", index)


def _fetch(
    name: str, config: str | None, split: str, revision: str | None, columns: tuple[str, ...]
) -> list[dict[str, object]]:
    try:
        from datasets import load_dataset
    except ModuleNotFoundError:
        raise ValueError(
            f"reading {name} from the Hugging Face Hub needs the package `datasets` and a network: "
            f"pip install 'tandem-llm[hub]', or {_LOCAL_COPY_ADVICE}"
        ) from None
    try:
        stream = load_dataset(name, config, split=split, revision=revision, streaming=True)
        return [dict(fields) for fields in (stream.select_columns(list(columns)) if columns else stream)]
    except Exception as error:  # `datasets` raises its own, requests', fsspec's and huggingface_hub's errors
        raise ValueError(
            f"{name} (config {config}, split {split}) could not be read from the Hugging Face Hub, which needs a "
            f"network ({type(error).__name__}: {error}); {_LOCAL_COPY_ADVICE}"
        ) from error
