"""Hidden states as they cross a link: in which numbers, and how many bytes."""

from typing import Literal, TypeAlias

Number: TypeAlias = Literal["fp32", "fp16", "bf16", "int8"]
"""int8: symmetric, with one fp32 scale a row."""

NUMBERS: tuple[Number, ...] = ("fp32", "fp16", "bf16", "int8")
_NBYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
SCALE_NBYTES = 4


def hidden_nbytes(rows: int, width: int, number: Number) -> int:
    """Of `rows` tokens' hidden states, `width` numbers each: A of HAT, Eq. 3, times the rows."""
    return rows * (width * _NBYTES[number] + (SCALE_NBYTES if number == "int8" else 0))
