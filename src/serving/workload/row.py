"""A record of a data file that knows where it stands, so that what is wrong with it can be said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class InvalidRecordError(ValueError):
    """A record that cannot be used; the message begins with the file and the line."""


@dataclass(frozen=True)
class DataRecord:
    """`location` is for people (file and line, or Hub data set and index), `index` is that
    line, or the index in a list.

    Every reader raises BrokenRowError when the field is absent or of another type.
    """

    fields: Mapping[str, Any]
    location: str
    index: int

    def has(self, name: str) -> bool:
        return name in self.fields

    def text(self, name: str, *others: str, blank: bool = False) -> str:
        """The first of the named fields that is present; blank text only where it is allowed."""
        found = next((field for field in (name, *others) if field in self.fields), name)
        value = self._value(found, str, "a text")
        if not blank and not value.strip():
            raise self.error(f'field "{found}" is empty')
        return str(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts with at least one element."""
        values = self._value(name, list, "a list of texts")
        if not values or not all(isinstance(value, str) for value in values):
            raise self.error(f'field "{name}" is {values!r:.60}, needed is a list of texts with at least one')
        return tuple(values)

    def integer(self, name: str) -> int:
        """An integer, or a text that spells one."""
        value = self.fields.get(name)
        if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
            return int(value)
        return int(self._value(name, int, "a whole number"))

    def nested(self, name: str) -> DataRecord:
        """A nested object."""
        return DataRecord(self._value(name, dict, "an object"), f"{self.location} {name}", self.index)

    def records(self, name: str) -> Iterator[DataRecord]:
        """The objects of a nested list."""
        for index, value in enumerate(self._value(name, list, "a list of objects")):
            place = f"{self.location} {name}[{index}]"
            if not isinstance(value, dict):
                raise InvalidRecordError(f"{place}: {_type_name(value)}, needed is an object")
            yield DataRecord(value, place, self.index)

    def error(self, reason: str) -> InvalidRecordError:
        return InvalidRecordError(f"{self.location}: {reason}")

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
