"""Training, validation and test: who is in which, by luck."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")
SplitShares = tuple[float, float, float]
"""Of all: training, validation, test."""


def random_split(items: Sequence[T], shares: SplitShares, seed: int) -> tuple[list[T], list[T], list[T]]:
    """Each member in one part, the last two of which have one at least; training is empty where too few are left."""
    order = np.random.default_rng(seed).permutation(len(items)).tolist()
    tested, validated = (max(1, round(share * len(order))) for share in (shares[2], shares[1]))
    ends = max(0, len(order) - tested - validated), max(0, len(order) - tested)
    train, validation, test = ([items[i] for i in part] for part in (
        order[: ends[0]], order[ends[0] : ends[1]], order[ends[1] :],
    ))  # fmt: skip
    return train, validation, test
