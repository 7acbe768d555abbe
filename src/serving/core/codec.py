"""Converts messages to plain data and back, for the event log and for the wire.

A codec is compiled once per type from the annotations of its dataclasses; nothing is imported by name. The forms:

- `codec`, for JSON: an object has the names of its fields, without those that hold their default. Where an annotation
  allows several classes, the object names its class under "is". An infinite number is the text "inf".
- `bounded_codec`, for MessagePack between hosts: a list has the fields in their order, without those at its end that
  hold their default. Where several classes are allowed, the first entry names the class. Data from another host need
  bounds as well as types: a table (`Bounds`) has them by field.
"""

import re
import types
from collections.abc import Callable, Mapping, Sized
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from math import isfinite
from operator import attrgetter
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_INF = float("inf")
_SPECIAL_FLOATS = {"inf": _INF, "-inf": -_INF, "nan": float("nan")}
TAG = "is"


class MalformedError(ValueError):
    """The data do not fit their type or bounds; names the place in them."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(f"{place}: {what}" if place else what)
        self.what, self.path = what, place

    def within(self, outer: str) -> "MalformedError":
        dot = "." if self.path and not self.path.startswith("[") else ""
        return MalformedError(self.what, f"{outer}{dot}{self.path}")


@dataclass(frozen=True, slots=True)
class Bound:
    """What a field may hold; of a sequence, what each entry may hold."""

    low: float = 0
    high: float = 2**31 - 1
    or_infinite: bool = False
    """True: positive infinity, too."""
    pattern: str = ""
    """A regular expression for the whole of a text."""
    min_len: int = 0
    max_len: int | None = None
    """Entries of a sequence."""


@dataclass(frozen=True)
class Bounds:
    """The bounds of all fields that a codec meets."""

    defaults: Mapping[type, Bound]
    """For a number or text (int, float, str) without a row of its own. Sequences need a row."""
    fields: Mapping[type, Mapping[str, Bound]]
    """By class and field."""
    checks: Mapping[type, Callable[[Any], None]]
    """What holds between the fields of a class: called with the decoded object, raises MalformedError."""


@dataclass(frozen=True, slots=True)
class Codec:
    """`decode` accepts what `encode` returns, before or after it was JSON or MessagePack. It raises MalformedError (a
    ValueError) that names the place. A bounded codec's `encode` raises it for a whole number out of its bounds.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


@cache
def codec(kind: Any) -> Codec:
    """Returns the codec of a message, of a union of messages, or of the type of a field; it checks types only."""
    return _compile(kind, None, None)


def bounded_codec(kind: Any, bounds: Bounds) -> Codec:
    """Returns a codec that refuses what is out of bounds.

    Raises TypeError for a sequence without a row in `bounds`.
    """
    return _compile(kind, bounds, None)


def _compile(kind: Any, bounds: Bounds | None, bound: Bound | None) -> Codec:
    if kind is bool:
        return Codec(_identity, _exactly(bool, "true or false"))
    if kind in _SCALARS:
        return _SCALARS[kind](bound or (bounds.defaults[kind] if bounds else None))
    if _is_class(kind):
        return _class_codec(kind, False, bounds)
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union_codec(args, bounds, bound)
    if origin is Literal:
        return _one_of(args)
    if bounds and (bound is None or bound.max_len is None):
        raise TypeError(f"no bound on the entries of {kind!r}; give its field a max_len in the table of bounds")
    if origin is tuple and args[-1] is Ellipsis:
        return _integers(bound) if args[0] is int else _sequence(_compile(args[0], bounds, bound), bound)
    if isinstance(origin, type) and issubclass(origin, Mapping) and not bounds:
        return _mapping(_compile(args[1], None, None))
    raise TypeError(f"no codec for {kind!r}; serving.core.codec must learn the new kind of field")


def _is_class(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind)


def _identity(value: Any) -> Any:
    return value


def _unexpected(data: Any, expected: str) -> MalformedError:
    return MalformedError(f"got {data!r:.80}, not {expected}")


# Scalars.


def _exactly(kind: type, expected: str) -> Callable[[Any], Any]:
    def decode(data: Any) -> Any:
        if type(data) is not kind:
            raise _unexpected(data, expected)
        return data

    return decode


def _int(bound: Bound | None) -> Codec:
    if bound is None:
        return Codec(_identity, _exactly(int, "a whole number"))
    low, high = bound.low, bound.high

    def check(value: int) -> int:
        if not low <= value <= high:
            raise MalformedError(f"{value!r:.80} is out of range, must be {low} to {high}")
        return value

    def decode(data: Any) -> int:
        if type(data) is not int:
            raise _unexpected(data, "a whole number")
        return check(data)

    return Codec(check, decode)


def _encode_float(value: float) -> float | str:
    return value if isfinite(value) else str(value)


def _decode_float(data: Any) -> float:
    if type(data) is float or type(data) is int:
        return data
    if type(data) is str and data in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[data]
    raise _unexpected(data, "a number")


def _float(bound: Bound | None) -> Codec:
    if bound is None:
        return Codec(_encode_float, _decode_float)
    low, high, or_infinite = bound.low, bound.high, bound.or_infinite

    def decode(data: Any) -> float:
        if type(data) is not float and type(data) is not int:
            raise _unexpected(data, "a number")
        if not (low <= data <= high or (or_infinite and data == _INF)):
            raise MalformedError(f"{data!r:.80} must be a finite number of {low} to {high}")
        return data

    return Codec(_identity, decode)


def _str(bound: Bound | None) -> Codec:
    if bound is None:
        return Codec(_identity, _exactly(str, "a text"))
    matches, pattern = re.compile(bound.pattern).fullmatch, bound.pattern

    def decode(data: Any) -> str:
        if type(data) is not str or not matches(data):
            raise _unexpected(data, f"a text of the form {pattern}")
        return data

    return Codec(_identity, decode)


_SCALARS: Mapping[Any, Callable[[Bound | None], Codec]] = {int: _int, str: _str, float: _float}


def _one_of(words: tuple[Any, ...]) -> Codec:
    def decode(data: Any) -> Any:
        if type(data) is not str or data not in words:
            raise _unexpected(data, f"one of {', '.join(map(repr, words))}")
        return data

    return Codec(_identity, decode)


# Containers.


def _as_list(data: Any) -> Any:
    if type(data) is not tuple and type(data) is not list:
        raise _unexpected(data, "a list")
    return data


def _check_len(data: Sized, bound: Bound | None) -> None:
    if bound and bound.max_len is not None and not bound.min_len <= len(data) <= bound.max_len:
        raise MalformedError(f"{len(data)} entries, must be {bound.min_len} to {bound.max_len}")


def _integers(bound: Bound | None) -> Codec:
    """A sequence of whole numbers, checked as a whole: prompts are long."""

    def check(values: Any) -> Any:
        if bound and values and not (bound.low <= min(values) and max(values) <= bound.high):
            found = f"{min(values)!r:.40} to {max(values)!r:.40}"
            raise MalformedError(f"values {found} are out of range, must be {bound.low} to {bound.high}")
        return values

    def decode(data: Any) -> tuple[int, ...]:
        _check_len(_as_list(data), bound)
        if data and set(map(type, data)) != {int}:
            i, item = next((i, item) for i, item in enumerate(data) if type(item) is not int)
            raise _unexpected(item, "a whole number").within(f"[{i}]")
        return tuple(check(data))

    return Codec(check if bound else _identity, decode)


def _sequence(item_codec: Codec, bound: Bound | None) -> Codec:
    decode_item = item_codec.decode

    def decode(data: Any) -> tuple[Any, ...]:
        _check_len(_as_list(data), bound)
        found: list[Any] = []
        try:
            for item in data:
                found.append(decode_item(item))  # noqa: PERF401 - its length is the place of an error
        except MalformedError as error:
            raise error.within(f"[{len(found)}]") from None
        return tuple(found)

    return Codec(_encode_sequence(item_codec), decode)


def _encode_sequence(item_codec: Codec) -> Callable[[Any], Any]:
    encode = item_codec.encode
    if encode is _identity:
        return _identity
    if encode is _encode_float:
        return lambda value: value if all(map(isfinite, value)) else [encode(x) for x in value]
    return lambda value: [encode(x) for x in value]


def _mapping(item_codec: Codec) -> Codec:
    def decode(data: Any) -> dict[str, Any]:
        found = {}
        for name, item in _as_object(data).items():
            try:
                found[name] = item_codec.decode(item)
            except MalformedError as error:
                raise error.within(name) from None
        return found

    return Codec(lambda value: {name: item_codec.encode(item) for name, item in value.items()}, decode)


def _as_object(data: Any) -> dict[str, Any]:
    if type(data) is not dict:
        raise _unexpected(data, "an object")
    return data


def _optional(inner: Codec) -> Codec:
    def encode(value: Any) -> Any:
        return None if value is None else inner.encode(value)

    def decode(data: Any) -> Any:
        return None if data is None else inner.decode(data)

    return Codec(_identity if inner.encode is _identity else encode, decode)


# Classes.


def _class_codec(kind: Any, tagged: bool, bounds: Bounds | None) -> Codec:
    hints, rows = get_type_hints(kind), bounds.fields.get(kind, {}) if bounds else {}
    if not hints.keys() >= rows.keys():
        raise TypeError(f"{kind.__name__} has no {', '.join(sorted(rows.keys() - hints.keys()))}, but a bound for it")
    parts = []
    for part in fields(kind):
        try:
            found = _compile(hints[part.name], bounds, rows.get(part.name))
        except TypeError as error:
            raise TypeError(f"{kind.__name__}.{part.name}: {error}") from None
        parts.append(_Field(part.name, found, part.default))
    if bounds:
        return Codec(_encode_row(parts, kind.__name__ if tagged else None), _decode_row(kind, parts, tagged, bounds))
    return Codec(_encode_object(parts, kind.__name__ if tagged else None), _decode_object(kind, parts, tagged))


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    codec: Codec
    default: Any

    @property
    def encode(self) -> Callable[[Any], Any] | None:
        return None if self.codec.encode is _identity else self.codec.encode


def _field_values(parts: list[_Field]) -> Callable[[Any], tuple[Any, ...]]:
    get = attrgetter(*(part.name for part in parts))
    return get if len(parts) > 1 else lambda thing: (get(thing),)


def _encode_object(parts: list[_Field], tag: str | None) -> Callable[[Any], dict[str, Any]]:
    values, plan = _field_values(parts), [(part.name, part.encode, part.default) for part in parts]

    def encode(thing: Any) -> dict[str, Any]:
        out: dict[str, Any] = {TAG: tag} if tag else {}
        for (name, encode_field, default), value in zip(plan, values(thing), strict=True):
            if value != default:
                out[name] = encode_field(value) if encode_field else value
        return out

    return encode


def _decode_object(kind: Any, parts: list[_Field], tagged: bool) -> Callable[[Any], Any]:
    decoders = {part.name: (i, part.codec.decode) for i, part in enumerate(parts)}
    if tagged:
        decoders[TAG] = len(parts), _identity
    defaults = [*(part.default for part in parts), None]  # the last place takes the tag
    required = {part.name for part in parts if part.default is MISSING}
    name, prefix = kind.__name__, f"{kind.__name__}." if tagged else ""

    def decode(data: Any) -> Any:
        values = defaults.copy()
        for field, item in _as_object(data).items():
            if field not in decoders:
                raise MalformedError(f"{name} has no {field!r:.80}")
            i, decode_field = decoders[field]
            try:
                values[i] = decode_field(item)
            except MalformedError as error:
                raise error.within(prefix + field) from None
        if not required <= data.keys():
            raise MalformedError(f"{name} without {', '.join(sorted(required - data.keys()))}")
        return kind(*values[:-1])

    return decode


def _encode_row(parts: list[_Field], tag: str | None) -> Callable[[Any], list[Any]]:
    values, plan = _field_values(parts), [(i, part.encode) for i, part in enumerate(parts) if part.encode]
    defaults = [part.default for part in parts]

    def encode(thing: Any) -> list[Any]:
        row = [*values(thing)]
        while row and row[-1] == defaults[len(row) - 1]:
            row.pop()
        for i, encode_field in plan:
            if i >= len(row):
                break
            row[i] = encode_field(row[i])
        return [tag, *row] if tag else row

    return encode


def _decode_row(kind: Any, parts: list[_Field], tagged: bool, bounds: Bounds) -> Callable[[Any], Any]:
    decoders, check = [part.codec.decode for part in parts], bounds.checks.get(kind)
    least, most = sum(part.default is MISSING for part in parts), len(parts)
    name, prefix = kind.__name__, f"{kind.__name__}." if tagged else ""

    def decode(data: Any) -> Any:
        items = data[1:] if tagged else _as_list(data)
        if not least <= len(items) <= most:
            raise MalformedError(f"{name} of {len(items)} fields, must be {least} to {most}")
        values: list[Any] = []
        try:
            for decode_field, item in zip(decoders, items, strict=False):
                values.append(decode_field(item))
        except MalformedError as error:
            raise error.within(prefix + parts[len(values)].name) from None
        try:
            made = kind(*values)
            if check:
                check(made)
        except ValueError as error:
            malformed = error if isinstance(error, MalformedError) else MalformedError(str(error))
            raise (malformed.within(name) if tagged else malformed) from None
        return made

    return decode


# Unions.


def _union_codec(kinds: tuple[Any, ...], bounds: Bounds | None, bound: Bound | None) -> Codec:
    classes = [kind for kind in kinds if _is_class(kind)]
    rest = [kind for kind in kinds if kind is not type(None) and not _is_class(kind)]
    if len(rest) + bool(classes) != 1 and not (len(rest) == 1 and get_origin(rest[0]) is tuple):
        raise TypeError(f"no codec for a union of {kinds!r}: what an object in the data means would be open")
    nullable = type(None) in kinds
    if not classes:
        return _optional(_compile(rest[0], bounds, bound))
    if not rest and len(classes) == 1:
        return _optional(_compile(classes[0], bounds, bound))
    return _tagged_codec(classes, _compile(rest[0], bounds, bound) if rest else None, nullable, bounds)


def _tagged_codec(classes: list[Any], tuple_codec: Codec | None, nullable: bool, bounds: Bounds | None) -> Codec:
    parts = {kind.__name__: _class_codec(kind, True, bounds) for kind in classes}
    encoders = {kind: parts[kind.__name__].encode for kind in classes}
    decoders = {name: part.decode for name, part in parts.items()}
    if tuple_codec:
        encoders[tuple] = tuple_codec.encode
    if nullable:
        encoders[type(None)] = _identity

    def decode(data: Any) -> Any:
        if tuple_codec and type(data) in (list, tuple):
            return tuple_codec.decode(data)
        if data is None and nullable:
            return None
        tag = (_as_list(data) or (None,))[0] if bounds else _as_object(data).get(TAG)
        if type(tag) is not str or tag not in decoders:
            raise _unexpected(tag, f"one of {', '.join(decoders)}")
        return decoders[tag](data)

    return Codec(lambda value: encoders[type(value)](value), decode)
