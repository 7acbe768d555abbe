"""Writes frames as docs/transport.md describes them, without any check: what a hostile host may send."""

from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args

import msgpack

from serving.messages import Message
from serving.transport.frame import Envelope, Frame
from serving.transport.tensors import PackedTensor, TensorHeader

NAMED = (*get_args(Message), *get_args(Frame))
"""Classes whose rows begin with their name."""


def row(thing: Any) -> Any:
    if is_dataclass(thing):
        values = [row(getattr(thing, field.name)) for field in fields(thing)]
        return [type(thing).__name__, *values] if isinstance(thing, NAMED) else values
    return [row(each) for each in thing] if isinstance(thing, list | tuple) else thing


def frame_of(header: Any, data: bytes = b"") -> bytes:
    """A frame with any header: a message class, or plain data."""
    packed = msgpack.packb(row(header))
    return len(packed).to_bytes(4, "little") + packed + data


def changed(thing: Any, path: str, value: Any) -> Any:
    """A copy of a dataclass with another value at `a.b.c`, of any type."""
    name, _, rest = path.partition(".")
    return replace(thing, **{name: changed(getattr(thing, name), rest, value) if rest else value})


def packed(dtype: Any, shape: Any, data: bytes = b"") -> PackedTensor:
    return PackedTensor(TensorHeader(dtype, tuple(shape)), data)


def with_tensors(envelope: Envelope, *found: PackedTensor) -> tuple[Envelope, bytes]:
    """The envelope that lists these tensors, and their bytes."""
    return changed(envelope, "tensors", tuple(each.header for each in found)), b"".join(each.data for each in found)
