"""Hidden states as they cross a link: in which numbers, and how many bytes.

How many bytes a drafter's distribution weighs on a link.
"""

from typing import Literal, TypeAlias

HiddenDtype: TypeAlias = Literal["fp32", "fp16", "bf16", "int8"]
"""int8: symmetric, with one fp32 scale a row."""

HIDDEN_DTYPES: tuple[HiddenDtype, ...] = ("fp32", "fp16", "bf16", "int8")
_NBYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
SCALE_NBYTES = 4


def hidden_nbytes(num_tokens: int, hidden_size: int, dtype: HiddenDtype) -> int:
    """Of `num_tokens` tokens' hidden states, `hidden_size` numbers each: A of HAT, Eq. 3, times the rows."""
    return num_tokens * (hidden_size * _NBYTES[dtype] + (SCALE_NBYTES if dtype == "int8" else 0))


PROBABILITY_NBYTES = 2
"""fp16"""


def prob_entry_nbytes(vocab_size: int) -> int:
    """Of one token that is named with its probability."""
    return PROBABILITY_NBYTES + (2 if vocab_size <= 1 << 16 else 4)


def draft_probs_nbytes(num_entries: int, vocab_size: int) -> int:
    """Of a distribution that names `num_entries` tokens, or all (0) where naming them would cost more than it saves."""
    whole = PROBABILITY_NBYTES * vocab_size
    return min(whole, num_entries * prob_entry_nbytes(vocab_size)) if num_entries else whole
