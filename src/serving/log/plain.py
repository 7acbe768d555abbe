"""Codecs of what is no class: scalars, tuples, mappings; built from the codecs of their parts."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

_WORDS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}


class MalformedError(ValueError):
    """Data that no writer of this version wrote; says where in them."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(f"{place}: {what}" if place else what)
        self.what, self.place = what, place

    def inside(self, outer: str) -> "MalformedError":
        dot = "." if self.place and not self.place.startswith("[") else ""
        return MalformedError(self.what, f"{outer}{dot}{self.place}")


@dataclass(frozen=True, slots=True)
class Codec:
    """`decode` raises MalformedError (a ValueError) with the place; it accepts what `encode` gives, before or after
    JSON."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def same(value: Any) -> Any:
    return value


def wrong(data: Any, wanted: str) -> MalformedError:
    return MalformedError(f"got {data!r:.80}, not {wanted}")


# Scalars.


def _exactly(kind: type, wanted: str) -> Callable[[Any], Any]:
    def decode(data: Any) -> Any:
        if type(data) is not kind:
            raise wrong(data, wanted)
        return data

    return decode


def _encode_float(value: float) -> float | str:
    return value if isfinite(value) else str(value)


def _decode_float(data: Any) -> float:
    if type(data) is float or type(data) is int:
        return data
    if type(data) is str and data in _WORDS:
        return _WORDS[data]
    raise wrong(data, "a number")


def one_of(words: tuple[Any, ...]) -> Codec:
    def decode(data: Any) -> Any:
        if type(data) is not str or data not in words:
            raise wrong(data, f"one of {', '.join(map(repr, words))}")
        return data

    return Codec(same, decode)


SCALARS = {
    int: Codec(same, _exactly(int, "a whole number")),
    str: Codec(same, _exactly(str, "a text")),
    bool: Codec(same, _exactly(bool, "true or false")),
    float: Codec(_encode_float, _decode_float),
}


# Containers.


def as_list(data: Any) -> Any:
    if type(data) is not list and type(data) is not tuple:
        raise wrong(data, "a list")
    return data


def sequence(part: Codec) -> Codec:
    def decode(data: Any) -> tuple[Any, ...]:
        return tuple([_decode_item(part, i, item) for i, item in enumerate(as_list(data))])

    return Codec(_encode_sequence(part), decode)


def _decode_item(part: Codec, i: int, item: Any) -> Any:
    try:
        return part.decode(item)
    except MalformedError as error:
        raise error.inside(f"[{i}]") from None


def _encode_sequence(part: Codec) -> Callable[[Any], Any]:
    encode = part.encode
    if encode is same:
        return same
    if part is SCALARS[float]:
        return lambda value: value if all(map(isfinite, value)) else [encode(x) for x in value]
    return lambda value: [encode(x) for x in value]


def fixed(parts: list[Codec]) -> Codec:
    def decode(data: Any) -> tuple[Any, ...]:
        if len(as_list(data)) != len(parts):
            raise wrong(data, f"a list of {len(parts)}")
        return tuple(part.decode(item) for part, item in zip(parts, data, strict=True))

    return Codec(lambda value: [part.encode(x) for part, x in zip(parts, value, strict=True)], decode)


def mapping(part: Codec) -> Codec:
    def decode(data: Any) -> dict[str, Any]:
        found = {}
        for name, item in as_object(data).items():
            try:
                found[name] = part.decode(item)
            except MalformedError as error:
                raise error.inside(name) from None
        return found

    return Codec(lambda value: {name: part.encode(item) for name, item in value.items()}, decode)


def as_object(data: Any) -> dict[str, Any]:
    if type(data) is not dict or not all(type(name) is str for name in data):
        raise wrong(data, "an object")
    return data


def optional(part: Codec) -> Codec:
    def encode(value: Any) -> Any:
        return None if value is None else part.encode(value)

    def decode(data: Any) -> Any:
        return None if data is None else part.decode(data)

    return Codec(same if part.encode is same else encode, decode)
