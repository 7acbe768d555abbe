"""Drafts as trees: each draft names its parent, and a chain is the plainest tree.

The parents of a tree are one index for each draft: that of an earlier draft, or -1 for the last committed token. None
stands for a chain.
"""

from collections.abc import Callable, Sequence

from serving.messages import DraftParents, Verdict


def depths(parents: Sequence[int]) -> list[int]:
    """The number of ancestors of each node; 0 for a root."""
    found: list[int] = []
    for parent in parents:
        found.append(found[parent] + 1 if parent >= 0 else 0)
    return found


def depth(parents: DraftParents, num_drafts: int) -> int:
    """The number of drafts on the longest path."""
    return num_drafts if parents is None else max(depths(parents), default=-1) + 1


def first_path(parents: DraftParents, num_drafts: int) -> tuple[int, ...]:
    """The path from the root through each node's first child, which is its likeliest."""
    if parents is None:
        return tuple(range(num_drafts))
    path: list[int] = []
    for node, parent in enumerate(parents):
        if parent == (path[-1] if path else -1):
            path.append(node)
    return tuple(path)


def children_of(parents: Sequence[int]) -> dict[int, list[int]]:
    """Node (-1: the root's parent) -> its children, in order."""
    found: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        found.setdefault(parent, []).append(node)
    return found


def joined(first: DraftParents, num_first: int, second: DraftParents, num_second: int) -> DraftParents:
    """The parents of a draft of `num_first` tokens and of a second one that grows from its last token."""
    if first is None and second is None:
        return None
    head = range(-1, num_first - 1) if first is None else first
    tail = range(-1, num_second - 1) if second is None else second
    return (*head, *(num_first + parent for parent in tail))


def accept_greedily(
    drafts: Sequence[int], parents: DraftParents, target_token: Callable[[Sequence[int]], int]
) -> Verdict:
    """Accepts the longest path of drafts that the target would write itself.

    `target_token(path)` is the target's choice after the drafts of `path` (indices, from the root on).
    """
    path: list[int] = []
    while True:
        wanted = target_token(path)
        child = _child(drafts, parents, path, wanted)
        if child is None:
            return Verdict(len(path), wanted, None if parents is None else tuple(path))
        path.append(child)


def _child(drafts: Sequence[int], parents: DraftParents, path: Sequence[int], token: int) -> int | None:
    """The draft of this token that follows the path."""
    if parents is None:
        return len(path) if len(path) < len(drafts) and drafts[len(path)] == token else None
    last = path[-1] if path else -1
    return next((i for i, parent in enumerate(parents) if parent == last and drafts[i] == token), None)
