"""The tree is the best one of its size, as trying all of them shows."""

from itertools import combinations, product

import pytest

from serving.learned.medusa import CandidateRanks, MedusaHeads
from training.hat.serving_eval import build_tree

HEADS = [[0.5, 0.3, 0.05], [0.6, 0.1, 0.2], [0.9, 0.02, 0.01]]


def worth(tree: tuple[CandidateRanks, ...], heads: list[list[float]]) -> float:
    """Candidates of a tree that are expected to stand."""
    total = 0.0
    for ranks in tree:
        chance = 1.0
        for head, rank in zip(heads, ranks, strict=False):
            chance *= head[rank]
        total += chance
    return total


@pytest.mark.parametrize("candidates", [1, 2, 3])
@pytest.mark.parametrize("heads", [HEADS, HEADS[::-1], HEADS[:1], [[0.2, 0.2, 0.2]] * 2])
def test_the_tree_is_the_best_of_its_size(candidates: int, heads: list[list[float]]) -> None:
    paths = [path for n in range(1, len(heads) + 1) for path in product(range(3), repeat=n)]
    closed = [set(tree) for tree in combinations(paths, candidates)
              if all(len(path) == 1 or path[:-1] in tree for path in tree)]  # fmt: skip
    best = max(worth(tuple(tree), heads) for tree in closed)
    assert worth(build_tree(heads, candidates), heads) == pytest.approx(best)


def test_parents_come_before_children() -> None:
    tree = build_tree(HEADS, 8)
    assert tree[:4] == ((0,), (1,), (0, 0), (0, 0, 0))
    assert MedusaHeads(3, tree, 1).parents[:4] == (-1, -1, 0, 2)


def test_more_candidates_than_guesses_are_refused() -> None:
    with pytest.raises(ValueError, match="13 candidates are wanted, and 12 can be made"):
        build_tree([[0.5, 0.3, 0.1], [0.5, 0.2, 0.1]], 13)
