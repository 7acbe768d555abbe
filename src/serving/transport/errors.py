"""The error that ends a stream, and checks of received fields. An error names the field, its value and the bounds."""

import re
from collections.abc import Iterable, Sized
from math import isfinite

from google.protobuf.message import DecodeError

from serving.transport.tandem_pb2 import Frame


class ProtocolError(Exception):
    """Ends a stream with a gRPC status; its text is sent to the other side.

    Args:
        code: the name of a gRPC status code.
        text: for people; never holds a token or a key.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def invalid(text: str) -> ProtocolError:
    return ProtocolError("INVALID_ARGUMENT", text)


MAX_INT32 = 2**31 - 1
MAX_HOPS = 16
MAX_STOP_TOKENS = 256
MAX_SCORES = 16
MAX_LAYERS = 10_000

_NAME = re.compile(r"[A-Za-z0-9._:/-]+")
_TENSOR_ID = re.compile(r"[A-Za-z0-9._:/@-]{1,512}")
_VERSION = re.compile(r"[A-Za-z0-9._+-]{1,64}")


def parse_frame(data: bytes) -> Frame:
    try:
        frame: Frame = Frame.FromString(data)
    except DecodeError:
        raise invalid(f"frame: {len(data)} bytes are no Frame of tandem.v1.") from None
    return frame


def name(field: str, value: str, max_chars: int = 64) -> str:
    if len(value) > max_chars or not _NAME.fullmatch(value):
        raise invalid(f"{field}: {_shown(value)} must be 1 to {max_chars} characters of A-Z a-z 0-9 . _ : / -")
    return value


def tensor_id(field: str, value: str) -> str:
    if not _TENSOR_ID.fullmatch(value):
        raise invalid(f"{field}: {_shown(value)} must be 1 to 512 characters of A-Z a-z 0-9 . _ : / @ -")
    return value


def version(field: str, value: str) -> str:
    if not _VERSION.fullmatch(value):
        raise invalid(f"{field}: {_shown(value)} is not a version.")
    return value


def one_of(field: str, value: str, allowed: Iterable[str]) -> str:
    if value not in allowed:
        raise invalid(f"{field}: {_shown(value)} must be one of {', '.join(repr(each) for each in allowed)}")
    return value


def within(field: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise invalid(f"{field}: {value} must be {low} to {high}")
    return value


def finite(field: str, value: float, low: float, high: float = float("inf")) -> float:
    if not (isfinite(value) and low <= value <= high):
        raise invalid(f"{field}: {value} must be a finite number of {low} to {high}")
    return value


def length(field: str, values: Sized, low: int, high: int) -> None:
    if not low <= len(values) <= high:
        raise invalid(f"{field}: {len(values)} entries, must be {low} to {high}")


def integers(field: str, values: Iterable[int], low: int, high: int) -> tuple[int, ...]:
    found = tuple(values)
    if found and not (low <= min(found) and max(found) <= high):
        raise invalid(f"{field}: values {min(found)} to {max(found)} must be {low} to {high}")
    return found


def _shown(value: str) -> str:
    return repr(value if len(value) <= 64 else f"{value[:64]}...")
