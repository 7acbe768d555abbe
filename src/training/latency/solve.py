"""Least squares: the two ways in which coefficients are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations
from typing import TypeAlias

import numpy as np

from training.latency.equations import Array

Solve: TypeAlias = Callable[[Array, Array], Array]
"""(terms, seconds) -> coefficients; shapes (n, k), (n), (k)."""

SLACK = 1e-10
"""Of the target's length: below it a slope is rounding."""

PAPER = 4
"""Terms that WISP, Eq. 19 has, the first ones; the rest are ours."""


def relative(x: Array, y: Array) -> Array:
    """The coefficients >= 0 with the least squares of the relative error: what is used.

    Each equation is weighted by its time, which makes a lone decode as important as a long prefill; and time is never
    negative, however few rows there are.
    """
    return non_negative(x / y[:, None], np.ones(len(y)))


def ordinary(x: Array, y: Array) -> Array:
    """Plain least squares of the seconds on WISP's own terms, signs free: appendix C, for comparison.

    Its constant is charged to each pass, which for a batch is the paper's intercept.
    """
    found = np.zeros(x.shape[1])
    scale = _scale(x[:, :PAPER])
    found[:PAPER] = np.linalg.lstsq(x[:, :PAPER] / scale, y)[0] / scale
    return found


def non_negative(x: Array, y: Array) -> Array:
    """The b >= 0 with the least |x b - y|, exactly. Shapes: x (equations, columns), y (equations), b (columns).

    Columns of zeros get nothing, and of equal columns the first gets all.
    """
    scale, columns = _scale(x), _telling(x)
    q, r = np.linalg.qr(x / scale)  # the same problem with as few equations as columns
    target = q.T @ y
    found = _without_negative(r, target, columns)
    slopes = r[:, columns].T @ (target - r @ found)
    if slopes.max(initial=0) > SLACK * float(np.linalg.norm(target)):  # a column that was left out would still help
        found = _best(r, target, columns)
    return found / scale


def _without_negative(x: Array, y: Array, columns: list[int]) -> Array:
    """The plain solution on the columns that are left when the lowest one below 0 goes, again and again."""
    left, found = list(columns), np.zeros(x.shape[1])
    while left:
        tried = np.linalg.lstsq(x[:, left], y)[0]
        if tried.min() >= 0:
            found[left] = tried
            break
        left.pop(int(tried.argmin()))
    return found


def _best(x: Array, y: Array, columns: list[int]) -> Array:
    """The best of the plain solutions on every choice of columns: at the optimum those with b > 0 solve the plain
    problem among themselves, so one of the choices is it; of seven columns there are 127.
    """
    best, least = np.zeros(x.shape[1]), float("inf")
    for chosen in _choices(columns):
        tried = np.zeros(x.shape[1])
        tried[chosen] = np.linalg.lstsq(x[:, chosen], y)[0]
        error = float(np.sum((x @ tried - y) ** 2))
        if tried.min() >= 0 and error < least:
            best, least = tried, error
    return best


def _scale(x: Array) -> Array:
    norms: Array = np.linalg.norm(x, axis=0)
    return np.where(norms > 0, norms, 1)


def _telling(x: Array) -> list[int]:
    """Columns that are neither nothing nor the same as one before."""
    first = {column.tobytes(): i for i, column in reversed(list(enumerate(x.T.copy())))}
    return sorted(i for i in first.values() if x[:, i].any())


def _choices(columns: Sequence[int]) -> Iterator[list[int]]:
    return map(list, chain.from_iterable(combinations(columns, n) for n in range(len(columns) + 1)))
