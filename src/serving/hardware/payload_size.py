"""Bytes of hidden states and of draft distributions on a link."""

from typing import Literal, TypeAlias

HiddenDtype: TypeAlias = Literal["fp32", "fp16", "bf16", "int8"]
"""int8: symmetric, one fp32 scale per token."""

HIDDEN_DTYPES: tuple[HiddenDtype, ...] = ("fp32", "fp16", "bf16", "int8")
_NBYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
SCALE_NBYTES = 4


def hidden_nbytes(num_tokens: int, hidden_size: int, dtype: HiddenDtype) -> int:
    """Bytes of the hidden states of `num_tokens` tokens: A of HAT, Eq. 3, times the tokens."""
    return num_tokens * (hidden_size * _NBYTES[dtype] + (SCALE_NBYTES if dtype == "int8" else 0))


PROBABILITY_NBYTES = 2
"""fp16"""


def prob_entry_nbytes(vocab_size: int) -> int:
    """Bytes of one (token id, probability) entry."""
    return PROBABILITY_NBYTES + (2 if vocab_size <= 1 << 16 else 4)


def draft_probs_nbytes(num_entries: int, vocab_size: int) -> int:
    """Bytes of a distribution with `num_entries` (token id, probability) entries, or dense if that is smaller (0:
    dense).
    """
    dense = PROBABILITY_NBYTES * vocab_size
    return min(dense, num_entries * prob_entry_nbytes(vocab_size)) if num_entries else dense
