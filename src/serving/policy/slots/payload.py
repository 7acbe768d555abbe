"""Slot `exchange`: what crosses the link beside the rows themselves, whose payload follows from the placement."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from serving.hardware.payload_size import NUMBERS, Number
from serving.messages import Rows


class Exchange(Protocol):
    @property
    def whole(self) -> bool:
        """Does the drafter make the distributions of its drafts in full, whatever verification needs?"""
        ...

    @property
    def number(self) -> Number:
        """In which numbers hidden states cross, where a placement sends any."""
        ...

    def nbytes(self, rows: Rows) -> int:
        """Bytes that a message needs for these rows beyond token ids and hidden states."""
        ...


@dataclass(frozen=True)
class Nothing:
    """No message leaves the device."""

    whole: ClassVar[bool] = False
    number: ClassVar[Number] = "fp16"

    def nbytes(self, rows: Rows) -> int:  # noqa: ARG002
        return 0


@dataclass(frozen=True)
class Tokens:
    """Token ids, and of the drafter's distributions what lossless verification needs (Synera, section 4.2): under
    greedy decoding nothing, under top-k and top-p sampling the tokens that could have been drawn.
    """

    whole: ClassVar[bool] = False
    number: ClassVar[Number] = "fp16"

    def nbytes(self, rows: Rows) -> int:
        return _distributions(rows)


@dataclass(frozen=True)
class Whole:
    """Token ids and the drafter's whole distribution for each, greedy or not (Synera without compression)."""

    whole: ClassVar[bool] = True
    number: ClassVar[Number] = "fp16"

    def nbytes(self, rows: Rows) -> int:
        return _distributions(rows)


@dataclass(frozen=True)
class Hidden:
    """Hidden states alone (HAT, U-shape): neither token ids nor distributions leave the device.

    Args:
        number: fp16, bf16 or fp32, or int8 with a scale for each row.
    """

    number: Number = "fp16"
    whole: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.number not in NUMBERS:
            raise ValueError(f"policy.exchange.number is {self.number!r}; choose among {', '.join(NUMBERS)}")

    def nbytes(self, rows: Rows) -> int:  # noqa: ARG002
        return 0


def _distributions(rows: Rows) -> int:
    return sum(blob.nbytes for blob in rows.odds) if rows.odds else 0
