"""Importance of a draft's tokens, from the attention that the draft's tokens pay to each other (Synera, section 3.2).

"Column-wise summation" of the attention matrix leaves open what a column has. A draft of n tokens has n - 1 rows when
it is decided on, because its last token is not fed yet; a later token has fewer rows, and the first of a column is the
token's own.
"""

from collections.abc import Sequence
from statistics import fmean

from serving.core.scores import IMPORTANCE, IMPORTANCE_SCORES

AttentionRows = Sequence[Sequence[float]]
"""Row i: the attention that the draft's token i pays to its tokens 0..i. A draft of one token has one row with one
value: the attention of the token that wrote it to itself.
"""
ALL_LAYERS = 0
LAST_LAYER = 1
"""The planes of recorded attention: the mean over layers, and the last layer alone."""
NUM_PLANES = 2
_LAST_LAYER_SUFFIX = "_last_layer"


def importance_plane(score: str) -> int:
    """The plane that a score of `IMPORTANCE_SCORES` reads."""
    return LAST_LAYER if score.endswith(_LAST_LAYER_SUFFIX) else ALL_LAYERS


def draft_importance(rows: AttentionRows, num_tokens: int, score: str) -> tuple[float, ...]:
    """A score of `IMPORTANCE_SCORES` of each of a draft's `num_tokens` tokens.

    Tokens that have no row yet get the mean of the others.
    """
    kind = score.removesuffix(_LAST_LAYER_SUFFIX).removeprefix(IMPORTANCE)
    if not num_tokens or not rows:
        return (0.0,) * num_tokens
    skip, as_mean = int("later" in kind), kind.endswith("mean")
    columns = [[row[column] for row in rows[column + skip :]] for column in range(len(rows))]
    values = [sum(column) / (len(column) if as_mean and column else 1) for column in columns]
    return (*values, *(fmean(values),) * (num_tokens - len(values)))[:num_tokens]


def importance_scores(requested: Sequence[str]) -> tuple[str, ...]:
    """Those of the requested scores that are importance."""
    return tuple(name for name in requested if name in IMPORTANCE_SCORES)
