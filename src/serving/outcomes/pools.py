"""Scores and exits resampled from a trace, jointly with whether the draft was right."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from serving.core.keyed_random import luck
from serving.core.scores import SCORES, Scorers
from serving.outcomes.lookup import column_means
from serving.outcomes.rights import Rights

KINDS = ("wrong_after_wrong", "right_after_wrong", "wrong_after_right", "right_after_right", "behind_a_wrong_one")
BEHIND = KINDS.index("behind_a_wrong_one")
RANK, LAYERS = len(SCORES), len(SCORES) + 1
WIDTH = LAYERS + 1


@dataclass(frozen=True)
class Pools:
    """Recorded rows to draw from: per kind of draft its four scores, the rank of the target's token among the
    drafter's candidates, and after how many layers it was read off; and the attention of whole drafts.

    A draft's importance is another recorded draft's, drawn where it begins: how attention falls within a draft is kept,
    its tie to right and wrong is not.
    """

    rows: tuple[tuple[tuple[float, ...], ...], ...]
    attention: tuple[tuple[float, ...], ...]
    depth: int
    stems: tuple[int, ...] = ()
    """Of trees that the target's heads proposed, the last candidate that the target went on to write; -1: none."""
    trained: tuple[str, ...] = ()
    """Scores that were told from the others, or recorded of a router, in columns of their own."""

    def with_scores(self, scorers: Scorers) -> "Pools":
        """The same with trained scores."""
        import numpy as np

        rows = self.rows
        told = {name: scorer for name, scorer in scorers.items() if name not in self.trained}
        for scorer in told.values():
            found = [scorer.chances(np.array([row[: len(SCORES)] for row in kind])).tolist() for kind in rows]
            rows = tuple(
                tuple((*row, chance) for row, chance in zip(kind, chances, strict=True))
                for kind, chances in zip(rows, found, strict=True)
            )
        return replace(self, rows=rows, trained=(*self.trained, *told))

    def score(self, rights: Rights, at: int, i: int, run: int, name: str) -> float:
        column = WIDTH + self.trained.index(name) if name in self.trained else SCORES.index(name)
        return self._row(rights, at, i, run)[column]

    def rank(self, rights: Rights, at: int, i: int, run: int) -> int:
        return int(self._row(rights, at, i, run)[RANK])

    def layers(self, rights: Rights, at: int, i: int, run: int) -> int:
        return int(self._row(rights, at, i, run)[LAYERS])

    def importance(self, rights: Rights, at: int, n: int) -> tuple[float, ...]:
        if not n:
            return ()
        row = _one_of(self.attention, rights, at, "attention")
        values = column_means(row, 0, min(n, self.depth))
        return (*values, *values[-1:] * (n - self.depth))

    def stem(self, rights: Rights, at: int) -> int:
        """The last candidate that is right of the tree which is proposed beside token `at`."""
        return self.stems[int(luck(rights.stream, at, "tree") * len(self.stems))]

    def _row(self, rights: Rights, at: int, i: int, run: int) -> tuple[float, ...]:
        if i > run:
            return _one_of(self.rows[BEHIND], rights, at + i, "scores behind")
        before = 1 if i else rights.before(at)
        return _one_of(self.rows[2 * before + (i < run)], rights, at + i, "scores")


def _one_of(pool: Sequence[tuple[float, ...]], rights: Rights, position: int, purpose: str) -> tuple[float, ...]:
    return pool[int(luck(rights.stream, position, purpose) * len(pool))]
