"""Hidden states as they cross a link: in which numbers, and how many bytes.

How many bytes a drafter's distribution weighs on a link.
"""

from typing import Literal, TypeAlias

Number: TypeAlias = Literal["fp32", "fp16", "bf16", "int8"]
"""int8: symmetric, with one fp32 scale a row."""

NUMBERS: tuple[Number, ...] = ("fp32", "fp16", "bf16", "int8")
_NBYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
SCALE_NBYTES = 4


def hidden_nbytes(rows: int, width: int, number: Number) -> int:
    """Of `rows` tokens' hidden states, `width` numbers each: A of HAT, Eq. 3, times the rows."""
    return rows * (width * _NBYTES[number] + (SCALE_NBYTES if number == "int8" else 0))


PROBABILITY_NBYTES = 2
"""fp16"""


def entry_nbytes(vocabulary: int) -> int:
    """Of one token that is named with its probability."""
    return PROBABILITY_NBYTES + (2 if vocabulary <= 1 << 16 else 4)


def odds_nbytes(kept: int, vocabulary: int) -> int:
    """Of a distribution that names `kept` tokens, or all (0) where naming them would cost more than it saves."""
    whole = PROBABILITY_NBYTES * vocabulary
    return min(whole, kept * entry_nbytes(vocabulary)) if kept else whole
