"""Encodes the classes of `serving.messages` as plain JSON data and decodes them without loss.

A codec is compiled once per type from its annotations. Where an annotation allows several classes, the data name the
class under "is". Only classes of `serving.messages` are allowed; nothing is imported by name. A field that holds its
default is left out; an infinite number is the text "inf".
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from math import isfinite
from operator import attrgetter
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from serving import messages

_SPECIAL_FLOATS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}


class MalformedError(ValueError):
    """The data do not fit their type; names the place in them."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(f"{place}: {what}" if place else what)
        self.what, self.path = what, place

    def within(self, outer: str) -> "MalformedError":
        dot = "." if self.path and not self.path.startswith("[") else ""
        return MalformedError(self.what, f"{outer}{dot}{self.path}")


@dataclass(frozen=True, slots=True)
class Codec:
    """`decode` accepts what `encode` returns, before or after JSON. It raises MalformedError (a ValueError) that names
    the place.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def identity(value: Any) -> Any:
    return value


def unexpected(data: Any, expected: str) -> MalformedError:
    return MalformedError(f"got {data!r:.80}, not {expected}")


# Scalars.


def _exactly(kind: type, expected: str) -> Callable[[Any], Any]:
    def decode(data: Any) -> Any:
        if type(data) is not kind:
            raise unexpected(data, expected)
        return data

    return decode


def _encode_float(value: float) -> float | str:
    return value if isfinite(value) else str(value)


def _decode_float(data: Any) -> float:
    if type(data) is float or type(data) is int:
        return data
    if type(data) is str and data in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[data]
    raise unexpected(data, "a number")


def one_of(words: tuple[Any, ...]) -> Codec:
    def decode(data: Any) -> Any:
        if type(data) is not str or data not in words:
            raise unexpected(data, f"one of {', '.join(map(repr, words))}")
        return data

    return Codec(identity, decode)


SCALARS = {
    int: Codec(identity, _exactly(int, "a whole number")),
    str: Codec(identity, _exactly(str, "a text")),
    bool: Codec(identity, _exactly(bool, "true or false")),
    float: Codec(_encode_float, _decode_float),
}


# Containers.


def as_list(data: Any) -> Any:
    if type(data) is not list and type(data) is not tuple:
        raise unexpected(data, "a list")
    return data


def sequence(item_codec: Codec) -> Codec:
    def decode(data: Any) -> tuple[Any, ...]:
        return tuple([_decode_item(item_codec, i, item) for i, item in enumerate(as_list(data))])

    return Codec(_encode_sequence(item_codec), decode)


def _decode_item(codec: Codec, i: int, item: Any) -> Any:
    try:
        return codec.decode(item)
    except MalformedError as error:
        raise error.within(f"[{i}]") from None


def _encode_sequence(item_codec: Codec) -> Callable[[Any], Any]:
    encode = item_codec.encode
    if encode is identity:
        return identity
    if item_codec is SCALARS[float]:
        return lambda value: value if all(map(isfinite, value)) else [encode(x) for x in value]
    return lambda value: [encode(x) for x in value]


def fixed_tuple(item_codecs: list[Codec]) -> Codec:
    def decode(data: Any) -> tuple[Any, ...]:
        if len(as_list(data)) != len(item_codecs):
            raise unexpected(data, f"a list of {len(item_codecs)}")
        return tuple(part.decode(item) for part, item in zip(item_codecs, data, strict=True))

    return Codec(lambda value: [part.encode(x) for part, x in zip(item_codecs, value, strict=True)], decode)


def mapping(item_codec: Codec) -> Codec:
    def decode(data: Any) -> dict[str, Any]:
        found = {}
        for name, item in as_object(data).items():
            try:
                found[name] = item_codec.decode(item)
            except MalformedError as error:
                raise error.within(name) from None
        return found

    return Codec(lambda value: {name: item_codec.encode(item) for name, item in value.items()}, decode)


def as_object(data: Any) -> dict[str, Any]:
    if type(data) is not dict or not all(type(name) is str for name in data):
        raise unexpected(data, "an object")
    return data


def optional(inner_codec: Codec) -> Codec:
    def encode(value: Any) -> Any:
        return None if value is None else inner_codec.encode(value)

    def decode(data: Any) -> Any:
        return None if data is None else inner_codec.decode(data)

    return Codec(identity if inner_codec.encode is identity else encode, decode)


TAG = "is"


def codec(kind: Any) -> Codec:
    """Returns the codec of a class of `serving.messages`, of a union of them, or of the type of a field."""
    return _compiled(kind)


@cache
def _compiled(kind: Any) -> Codec:
    if kind in SCALARS:
        return SCALARS[kind]
    if _is_class(kind):
        return _class_codec(kind, False)
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union_codec(args)
    if origin is tuple:
        return sequence(codec(args[0])) if args[-1] is Ellipsis else fixed_tuple([codec(arg) for arg in args])
    if origin is Literal:
        return one_of(args)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return mapping(codec(args[1]))
    raise TypeError(f"no codec for {kind!r}; serving.log.codec must learn the new kind of field")


def _is_class(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == messages.__name__


# Classes.


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    codec: Codec
    default: Any


def _fields(kind: Any) -> list[_Field]:
    hints = get_type_hints(kind)
    return [_Field(f.name, codec(hints[f.name]), f.default) for f in fields(kind)]


@cache
def _class_codec(kind: Any, tagged: bool) -> Codec:
    parts, name = _fields(kind), kind.__name__
    known = {part.name for part in parts} | ({TAG} if tagged else set())

    def decode(data: Any) -> Any:
        if not known.issuperset(as_object(data)):
            raise MalformedError(f"{name} has no {', '.join(sorted(set(data) - known))}")
        return kind(*[_decode_field(part, data, name) for part in parts])

    return Codec(_encode_class(parts, name if tagged else None), decode)


def _encode_class(parts: list[_Field], tag: str | None) -> Callable[[Any], dict[str, Any]]:
    plan = [(p.name, None if p.codec.encode is identity else p.codec.encode, p.default) for p in parts]
    get = attrgetter(*(p.name for p in parts))
    values = get if len(parts) > 1 else lambda thing: (get(thing),)

    def encode(thing: Any) -> dict[str, Any]:
        out: dict[str, Any] = {TAG: tag} if tag else {}
        for (name, part, default), value in zip(plan, values(thing), strict=True):
            if value is not default:
                out[name] = part(value) if part else value
        return out

    return encode


def _decode_field(part: _Field, data: dict[str, Any], owner: str) -> Any:
    if part.name not in data:
        if part.default is MISSING:
            raise MalformedError(f"{owner} without {part.name}")
        return part.default
    try:
        return part.codec.decode(data[part.name])
    except MalformedError as error:
        raise error.within(f"{owner}.{part.name}") from None


# Unions.


def _union_codec(kinds: tuple[Any, ...]) -> Codec:
    classes = [kind for kind in kinds if _is_class(kind)]
    rest = [kind for kind in kinds if kind is not type(None) and not _is_class(kind)]
    if len(rest) + bool(classes) != 1 and not (len(rest) == 1 and get_origin(rest[0]) is tuple):
        raise TypeError(f"no codec for a union of {kinds!r}: what an object in the data means would be open")
    nullable = type(None) in kinds
    if not classes:
        return optional(codec(rest[0]))
    if not rest and len(classes) == 1:
        return optional(codec(classes[0]))
    return _tagged_codec(classes, codec(rest[0]) if rest else None, nullable)


def _tagged_codec(classes: list[Any], tuple_codec: Codec | None, nullable: bool) -> Codec:
    parts = {kind.__name__: _class_codec(kind, True) for kind in classes}
    encoders = {kind: parts[kind.__name__].encode for kind in classes}
    if tuple_codec:
        encoders[tuple] = tuple_codec.encode
    if nullable:
        encoders[type(None)] = identity

    def decode(data: Any) -> Any:
        if tuple_codec and type(data) in (list, tuple):
            return tuple_codec.decode(data)
        if data is None and nullable:
            return None
        tag = as_object(data).get(TAG)
        if type(tag) is not str or tag not in parts:
            raise unexpected(tag, f"one of {', '.join(parts)}")
        return parts[tag].decode(data)

    return Codec(lambda value: encoders[type(value)](value), decode)
