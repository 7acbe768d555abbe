"""Least squares: the two ways in which coefficients are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, combinations
from typing import TypeAlias

import numpy as np

from training.latency.equations import Array

Solve: TypeAlias = Callable[[Array, Array], Array]
"""(terms, seconds) -> coefficients; shapes (n, k), (n), (k)."""

PAPER = 4
"""Terms that WISP, Eq. 19 has; the rest are the head's."""


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
    """The b >= 0 with the least |x b - y|, exactly: the best of the plain solutions on every choice of columns.

    At the optimum the columns with b > 0 solve the plain problem among themselves, so one of the choices is it; with
    six columns there are 63. Shapes: x (equations, columns), y (equations), b (columns).
    """
    scale = _scale(x)
    q, r = np.linalg.qr(x / scale)  # the same problem with as few equations as columns
    target, best, least = q.T @ y, np.zeros(x.shape[1]), float("inf")
    for columns in _choices(x.shape[1]):
        tried = np.zeros(x.shape[1])
        tried[columns] = np.linalg.lstsq(r[:, columns], target)[0]
        error = float(np.sum((r @ tried - target) ** 2))
        if tried.min() >= 0 and error < least:
            best, least = tried, error
    return best / scale


def _scale(x: Array) -> Array:
    norms: Array = np.linalg.norm(x, axis=0)
    return np.where(norms > 0, norms, 1)


def _choices(columns: int) -> Iterator[list[int]]:
    every = range(columns)
    return map(list, chain.from_iterable(combinations(every, n) for n in range(columns + 1)))
