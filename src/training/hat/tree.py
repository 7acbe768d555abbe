"""Which candidates a verification looks at: those that are likeliest with such heads (Medusa, section 2.3.3)."""

from __future__ import annotations

from collections.abc import Sequence

from serving.learned.medusa import Ranks


def grow(accuracies: Sequence[Sequence[float]], candidates: int) -> tuple[Ranks, ...]:
    """So many candidates of which as many as can be are expected to stand, parents before their children.

    `accuracies[k][r]` is how often head k's guess of rank r is right; heads are taken to err independently. Raises
    ValueError where there are fewer candidates than asked for.
    """
    tree: list[Ranks] = []
    waiting: dict[Ranks, float] = {(rank,): chance for rank, chance in enumerate(accuracies[0])}
    while len(tree) < candidates:
        if not waiting:
            raise ValueError(f"{candidates} candidates are wanted, and {len(tree)} can be made of these heads' guesses")
        ranks = min(waiting, key=lambda path: (-waiting[path], len(path), path))
        chance = waiting.pop(ranks)
        tree.append(ranks)
        if len(ranks) < len(accuracies):
            waiting |= {(*ranks, rank): chance * each for rank, each in enumerate(accuracies[len(ranks)])}
    return tuple(tree)
