"""What is timed: batches of forwards, and drafts, in the shapes that serving meets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log
from typing import NamedTuple

import numpy as np

MOST_SESSIONS, MOST_DRAFTS = 8, 8
CHUNK = 64


class Part(NamedTuple):
    """One session's share: `new` tokens behind `cached` ones.

    `asked` is what comes of it: rows through the head in a forward, tokens written in a draft.
    """

    cached: int
    new: int
    asked: int


@dataclass(frozen=True)
class Shape:
    kind: str
    parts: tuple[Part, ...]


def forward_shapes(count: int, longest: int, seed: int) -> list[Shape]:
    """What a cloud's worker runs: WISP, appendix C names compute-bound, memory-bound and mixed batches.

    Here these are whole prefills (alone, or sharing a batch), chunks of a prefill that nobody asks about, decodes,
    verifications, and verifications beside a chunk, in turn. No session is longer than `longest` tokens.
    """
    return _shapes(_FORWARDS, count, _Dice(longest, seed))


def draft_shapes(count: int, longest: int, seed: int) -> list[Shape]:
    """What a device runs: prompts fed without writing, prompts with the first draft, later drafts, lone tokens."""
    return _shapes(_DRAFTS, count, _Dice(longest, seed))


class _Dice:
    """Sizes drawn evenly over their logarithm: small ones are as frequent as large ones."""

    def __init__(self, longest: int, seed: int) -> None:
        self.longest, self._generator = longest, np.random.default_rng(seed)

    def size(self, least: int, most: int) -> int:
        return round(float(np.exp(self._generator.uniform(log(least), log(max(least, most))))))

    def cached(self) -> int:
        return self.size(16, self.longest - CHUNK)

    def drafts(self) -> int:
        return self.size(1, MOST_DRAFTS)

    def sessions(self) -> int:
        return self.size(1, MOST_SESSIONS)


def _shapes(kinds: Mapping[str, Callable[[_Dice], tuple[Part, ...]]], count: int, dice: _Dice) -> list[Shape]:
    names = list(kinds)
    return [Shape(name, kinds[name](dice)) for name in (names[i % len(names)] for i in range(count))]


def _prefill(dice: _Dice) -> tuple[Part, ...]:
    sharing = dice.size(1, 4)
    return tuple(Part(0, dice.size(8, dice.longest // sharing), 1) for _ in range(sharing))


def _chunk(dice: _Dice) -> tuple[Part, ...]:
    return (Part(dice.cached(), dice.size(1, CHUNK), 0),)


def _decode(dice: _Dice) -> tuple[Part, ...]:
    return tuple(Part(dice.cached(), 1, 1) for _ in range(dice.sessions()))


def _verify(dice: _Dice) -> tuple[Part, ...]:
    """Each session sends the last settled token and its drafts, all of which meet the head."""
    return tuple(Part(dice.cached(), 1 + k, 1 + k) for k in (dice.drafts() for _ in range(dice.sessions())))


def _mixed(dice: _Dice) -> tuple[Part, ...]:
    return _verify(dice) + _chunk(dice)


_FORWARDS = {"prefill": _prefill, "chunk": _chunk, "decode": _decode, "verify": _verify, "mixed": _mixed}
_DRAFTS: dict[str, Callable[[_Dice], tuple[Part, ...]]] = {
    "prompt": lambda dice: (Part(0, dice.size(1, dice.longest), 0),),
    "first draft": lambda dice: (Part(0, dice.size(8, dice.longest), dice.drafts()),),
    "draft": lambda dice: (Part(dice.cached(), dice.size(1, 4), dice.drafts()),),
    "token": lambda dice: (Part(dice.cached(), 1, 1),),
}
