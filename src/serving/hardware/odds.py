"""How many bytes a drafter's distribution weighs on a link."""

PROBABILITY_NBYTES = 2
"""fp16"""


def entry_nbytes(vocabulary: int) -> int:
    """Of one token that is named with its probability."""
    return PROBABILITY_NBYTES + (2 if vocabulary <= 1 << 16 else 4)


def odds_nbytes(kept: int, vocabulary: int) -> int:
    """Of a distribution that names `kept` tokens, or all (0) where naming them would cost more than it saves."""
    whole = PROBABILITY_NBYTES * vocabulary
    return min(whole, kept * entry_nbytes(vocabulary)) if kept else whole
