"""A configuration: the shape of one piece of work that is timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

COMPUTE_GRID = "compute-bound deterministic"
MEMORY_GRID = "memory-bound deterministic"
COMPUTE_DRAWN = "compute-bound random"
MEMORY_DRAWN = "memory-bound random"
MIXED = "mixed"
CATEGORIES = (COMPUTE_GRID, MEMORY_GRID, COMPUTE_DRAWN, MEMORY_DRAWN, MIXED)
"""As WISP, appendix C names them."""


class Part(NamedTuple):
    """One session's share: `new` tokens behind `cached` ones.

    `asked` is what comes of it: rows through the head in a forward, tokens written in a draft.
    """

    cached: int
    new: int
    asked: int


@dataclass(frozen=True)
class Shape:
    """`kind` is what it is in serving: a prefill, a chunk of one, a decode, a verification, a draft."""

    category: str
    kind: str
    parts: tuple[Part, ...] = ()
    held_out: bool = False
    """Is it left out of the fit, to test it?"""
