"""What a device runs: its configurations, and the drafts that they are."""

from __future__ import annotations

from serving.messages import Generate, Stop
from training.latency.grid import Catalogue, Dice
from training.latency.shape import COMPUTE_DRAWN, COMPUTE_GRID, MEMORY_DRAWN, MEMORY_GRID, MIXED, Part, Shape
from training.latency.work import Tokens, Work

_PROMPTS = 25
_QUARTERS, _FED, _WRITTEN = (0.25, 0.5, 0.75, 1.0), (1, 2, 4), (1, 2, 4, 8)


def _prompts(longest: int) -> list[Shape]:
    """Prefills without writing, up to the longest session."""
    sizes = [max(1, round(longest * (i + 1) / _PROMPTS)) for i in range(_PROMPTS)]
    return [Shape(COMPUTE_GRID, "prompt", (Part(0, size, 0),)) for size in sizes]


def _drafts(longest: int) -> list[Shape]:
    """Drafts of 1 to 8 tokens, after 1 to 4 that the cache lacks."""
    return [
        Shape(MEMORY_GRID, "draft", (Part(round(longest * quarter) - fed - written, fed, written),))
        for quarter in _QUARTERS
        for fed in _FED
        for written in _WRITTEN
    ]


def _prompt(dice: Dice) -> tuple[Part, ...]:
    return (Part(0, dice.size(1, dice.longest), 0),)


def _draft(dice: Dice) -> tuple[Part, ...]:
    return (Part(dice.cached(), dice.size(1, 4), dice.drafts()),)


def _token(dice: Dice) -> tuple[Part, ...]:
    return (Part(dice.cached(), 1, 1),)


def _first_draft(dice: Dice) -> tuple[Part, ...]:
    return (Part(0, dice.size(8, dice.longest), dice.drafts()),)


DRAFTS = Catalogue(
    grids={COMPUTE_GRID: _prompts, MEMORY_GRID: _drafts},
    draws={
        COMPUTE_DRAWN: {"prompt": _prompt},
        MEMORY_DRAWN: {"draft": _draft, "token": _token},
        MIXED: {"first draft": _first_draft},
    },
)
"""The paper profiles no device; its categories here: prompts, drafts, and prompts with the draft that follows."""


def drafts(shape: Shape, run: str, tokens: Tokens) -> tuple[list[Work], Work]:
    """One session's greedy draft; the scores that a policy may ask for are not among it."""
    (part,) = shape.parts
    return _fills(part.cached, run, tokens), Generate(run, part.cached, tokens(part.new), Stop(part.asked))


def _fills(cached: int, run: str, tokens: Tokens) -> list[Work]:
    """All but the last cached token, then that one, so that the slot has grown before it is timed."""
    starts = ((0, cached - 1), (cached - 1, cached))
    return [Generate(run, first, tokens(last - first), Stop(0)) for first, last in starts if last > first >= 0]
