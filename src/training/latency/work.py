"""What the engine is given to make a configuration: work that fills the caches, and the work that is timed.

What a device runs: its configurations, and the drafts that they are.

What a cloud's worker runs: its configurations, and the forwards that they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from serving.messages import Forward, Generate, Rows, Span, Stop
from training.latency.grid import (
    CHUNK,
    COMPUTE_DRAWN,
    COMPUTE_GRID,
    MEMORY_DRAWN,
    MEMORY_GRID,
    MIXED,
    Catalogue,
    Dice,
    Part,
    Shape,
)

Tokens: TypeAlias = Callable[[int], tuple[int, ...]]
"""So many tokens that no run had before."""

Work: TypeAlias = Generate | Forward

Works: TypeAlias = Callable[[Shape, str, Tokens], tuple[list[Work], Work]]
"""(shape, name of the run, source of tokens) -> what fills the caches, what is timed."""


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


_SPLITS = {
    "single": (1.0,),
    "split-2": (0.5, 0.5),
    "split-4": (0.25, 0.25, 0.25, 0.25),
    "varied": (0.625, 0.375),
    "varied-4": (0.5, 0.25, 0.125, 0.125),
}
_TOTALS = (0.6, 0.7, 0.8, 0.9, 1.0)
"""Of the longest session, as the paper's 1,200 to 2,000 tokens are of 2,000."""
_NEW, _QUARTERS_of_verification, _BATCHES = (1, 5, 10, 20, 50, 100), (0.25, 0.5, 0.75, 1.0), (1, 4)


def _prefills(longest: int) -> list[Shape]:
    """Uncached batches of 60 to 100 % of the longest session, whole or split."""
    return [
        Shape(COMPUTE_GRID, "prefill", tuple(Part(0, max(1, round(longest * total * share)), 1) for share in split))
        for total in _TOTALS
        for split in _SPLITS.values()
    ]


def _verifications(longest: int) -> list[Shape]:
    """The paper's 48: 1 to 100 new tokens, of totals up to the longest session; fewer new ones where the total is
    below 200, so that most of it stays cached.
    """
    return [
        Shape(MEMORY_GRID, "verify", (_part(round(longest * quarter), new),) * batch)
        for quarter in _QUARTERS_of_verification
        for new in _NEW
        for batch in _BATCHES
    ]


def _part(total: int, new: int) -> Part:
    new = max(1, min(new, round(total / 200 * new)))
    return Part(total - new, new, new)


def _prefill(dice: Dice) -> tuple[Part, ...]:
    sharing = dice.size(1, 4)
    return tuple(Part(0, dice.size(8, dice.longest // sharing), 1) for _ in range(sharing))


def _chunk(dice: Dice) -> tuple[Part, ...]:
    """A part of a prompt that nobody asks about yet."""
    return (Part(dice.cached(), dice.size(1, CHUNK), 0),)


def _decode(dice: Dice) -> tuple[Part, ...]:
    return tuple(Part(dice.cached(), 1, 1) for _ in range(dice.sessions()))


def _verify(dice: Dice) -> tuple[Part, ...]:
    """Each session sends the last settled token and its drafts, all of which meet the head."""
    return tuple(Part(dice.cached(), 1 + k, 1 + k) for k in (dice.drafts() for _ in range(dice.sessions())))


def _beside_chunk(dice: Dice) -> tuple[Part, ...]:
    return _verify(dice) + _chunk(dice)


def _beside_prefill(dice: Dice) -> tuple[Part, ...]:
    return (*_verify(dice), Part(0, dice.size(8, dice.longest), 1))


FORWARDS = Catalogue(
    grids={COMPUTE_GRID: _prefills, MEMORY_GRID: _verifications},
    draws={
        COMPUTE_DRAWN: {"prefill": _prefill},
        MEMORY_DRAWN: {"verify": _verify, "decode": _decode, "chunk": _chunk},
        MIXED: {"verify and prefill": _beside_prefill, "verify and chunk": _beside_chunk},
    },
)
"""Prefills alone or sharing a batch, chunks, decodes, verifications, and verifications beside uncached requests."""


def forwards(layers: int) -> Works:
    """Batches through all layers of a model of that depth, with greedy verdicts where something is asked."""
    span = Span(0, layers, embed=True, head=True)

    def works(shape: Shape, run: str, tokens: Tokens) -> tuple[list[Work], Work]:
        parts = [(f"{run}/{i}", part) for i, part in enumerate(shape.parts)]
        rows = [
            Rows(name, cached, new, tokens(new), max(0, asked - 1), "greedy" if asked else "")
            for name, (cached, new, asked) in parts
        ]
        return [_forward(span, each) for each in _fills_of_verification(parts, tokens) if each], _forward(span, rows)

    return works


def _fills_of_verification(parts: Sequence[tuple[str, Part]], tokens: Tokens) -> tuple[list[Rows], list[Rows]]:
    """All but the last cached token, then that one: a slot grows by doubling when it is first outgrown, once in a
    session, and should not while it is timed.
    """
    prompts = [Rows(name, 0, part.cached - 1, tokens(part.cached - 1)) for name, part in parts if part.cached > 1]
    return prompts, [Rows(name, part.cached - 1, 1, tokens(1)) for name, part in parts if part.cached]


def _forward(span: Span, rows: Sequence[Rows]) -> Forward:
    return Forward(span, tuple(rows), ("last",) * len(rows))
