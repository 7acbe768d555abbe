"""Converts messages to plain JSON data and back: the event log's lines, and the header of a frame between hosts.

A codec is compiled once per type from the annotations of its dataclasses. A field that holds its default is left out;
where an annotation allows several classes, the data name the class under "is"; an infinite number is the text "inf".
Nothing is imported by name. Data from another host need bounds as well as types: `bounded_codec` takes them from a
table (`Bounds`), a row for each field.
"""

import re
import types
from collections.abc import Callable, Mapping, Sized
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from math import isfinite
from operator import attrgetter
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_SPECIAL_FLOATS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
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
    fields: Mapping[tuple[type, str], Bound]
    """By class and field."""
    checks: Mapping[type, Callable[[Any], None]]
    """What holds between the fields of a class: called with the decoded object, raises MalformedError."""


@dataclass(frozen=True, slots=True)
class Codec:
    """`decode` accepts what `encode` returns, before or after JSON. It raises MalformedError (a ValueError) that names
    the place. A bounded codec's `encode` raises it for a whole number out of its bounds.
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
    if origin is tuple and args[-1] is not Ellipsis:
        return _fixed_tuple([_compile(arg, bounds, bound) for arg in args])
    if origin is tuple:
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


def _bool(_: Bound | None) -> Codec:
    return Codec(_identity, _exactly(bool, "true or false"))


def _int(bound: Bound | None) -> Codec:
    decode = _exactly(int, "a whole number")
    if bound is None:
        return Codec(_identity, decode)
    low, high = bound.low, bound.high

    def check(value: int) -> int:
        if not low <= value <= high:
            raise MalformedError(f"{value!r:.80} is out of range, must be {low} to {high}")
        return value

    return Codec(check, lambda data: check(decode(data)))


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
        value = _decode_float(data)
        if not (low <= value <= high or (or_infinite and value == _SPECIAL_FLOATS["inf"])):
            raise MalformedError(f"{value!r:.80} must be a finite number of {low} to {high}")
        return value

    return Codec(_encode_float, decode)


def _str(bound: Bound | None) -> Codec:
    decode = _exactly(str, "a text")
    if bound is None:
        return Codec(_identity, decode)
    matches, pattern = re.compile(bound.pattern).fullmatch, bound.pattern

    def decode_matching(data: Any) -> str:
        if not matches(decode(data)):
            raise _unexpected(data, f"a text of the form {pattern}")
        return str(data)

    return Codec(_identity, decode_matching)


_SCALARS: Mapping[Any, Callable[[Bound | None], Codec]] = {int: _int, str: _str, bool: _bool, float: _float}


def _one_of(words: tuple[Any, ...]) -> Codec:
    def decode(data: Any) -> Any:
        if type(data) is not str or data not in words:
            raise _unexpected(data, f"one of {', '.join(map(repr, words))}")
        return data

    return Codec(_identity, decode)


# Containers.


def _as_list(data: Any) -> Any:
    if type(data) is not list and type(data) is not tuple:
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


def _fixed_tuple(item_codecs: list[Codec]) -> Codec:
    def decode(data: Any) -> tuple[Any, ...]:
        if len(_as_list(data)) != len(item_codecs):
            raise _unexpected(data, f"a list of {len(item_codecs)}")
        return tuple(part.decode(item) for part, item in zip(item_codecs, data, strict=True))

    return Codec(lambda value: [part.encode(x) for part, x in zip(item_codecs, value, strict=True)], decode)


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
    hints, name, parts = get_type_hints(kind), kind.__name__, fields(kind)
    codecs = [_field_codec(kind, part.name, hints[part.name], bounds) for part in parts]
    decoders = {part.name: (i, codecs[i].decode) for i, part in enumerate(parts)}
    if tagged:
        decoders[TAG] = len(parts), _identity
    defaults = [*(part.default for part in parts), None]  # the last place takes the tag
    required = {part.name for part in parts if part.default is MISSING}
    check, prefix = bounds.checks.get(kind) if bounds else None, f"{name}." if tagged else ""

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
        made = kind(*values[:-1])
        if check:
            _checked(check, made, name if tagged else "")
        return made

    return Codec(_encode_class(parts, codecs, name if tagged else None), decode)


def _field_codec(owner: Any, name: str, hint: Any, bounds: Bounds | None) -> Codec:
    try:
        return _compile(hint, bounds, bounds.fields.get((owner, name)) if bounds else None)
    except TypeError as error:
        raise TypeError(f"{owner.__name__}.{name}: {error}") from None


def _checked(check: Callable[[Any], None], made: Any, place: str) -> None:
    try:
        check(made)
    except MalformedError as error:
        raise (error.within(place) if place else error) from None


def _encode_class(parts: Any, codecs: list[Codec], tag: str | None) -> Callable[[Any], dict[str, Any]]:
    encoders = [None if part.encode is _identity else part.encode for part in codecs]
    plan = [(part.name, encode, part.default) for part, encode in zip(parts, encoders, strict=True)]
    get = attrgetter(*(part.name for part in parts))
    values = get if len(parts) > 1 else lambda thing: (get(thing),)

    def encode(thing: Any) -> dict[str, Any]:
        out: dict[str, Any] = {TAG: tag} if tag else {}
        for (name, encode_field, default), value in zip(plan, values(thing), strict=True):
            if value is not default:
                out[name] = encode_field(value) if encode_field else value
        return out

    return encode


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
    if tuple_codec:
        encoders[tuple] = tuple_codec.encode
    if nullable:
        encoders[type(None)] = _identity

    def decode(data: Any) -> Any:
        if tuple_codec and type(data) in (list, tuple):
            return tuple_codec.decode(data)
        if data is None and nullable:
            return None
        tag = _as_object(data).get(TAG)
        if type(tag) is not str or tag not in parts:
            raise _unexpected(tag, f"one of {', '.join(parts)}")
        return parts[tag].decode(data)

    return Codec(lambda value: encoders[type(value)](value), decode)
