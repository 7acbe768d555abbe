"""Grows a tree of drafts level by level, from the drafter's candidates and their probabilities.

Greedy drafts are EAGLE-2's (Li et al., EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees, 2024,
section 4): the likeliest nodes of a level get children, and of all nodes the likeliest stay. A node's value is the
product of probabilities on its path.

Sampled drafts are drawn, and a node that is left out for its value would bias the text. So the number of a node's
children is settled before they are drawn, all of them stay, and each level has its share of the nodes.
"""

from collections.abc import Sequence
from itertools import accumulate

from serving.messages import DraftStopRule, TokenIds, TreeRule

ROOT = -1
"""The last committed token."""
Candidates = Sequence[tuple[int, float]]
"""Tokens and their probabilities, the likeliest or first drawn first."""


class TreeGrowth:
    """
    Args:
        rule: has a tree.
        stop_tokens: a node with one of them gets no children.
        sampled: True if candidates are drawn.
    """

    def __init__(self, rule: DraftStopRule, stop_tokens: TokenIds = (), sampled: bool = False) -> None:
        assert rule.tree is not None
        self._tree: TreeRule = rule.tree
        self._max_nodes, self._stop_tokens, self._sampled = rule.max_tokens, stop_tokens, sampled
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._values: list[float] = []
        self._ranks: list[tuple[int, ...]] = []
        self.levels: list[tuple[int, ...]] = []
        """The nodes that got children, level by level."""
        self.frontier: tuple[int, ...] = (ROOT,)
        """The nodes whose candidates are wanted next; none: the tree is grown."""
        self._widths: dict[int, int] = {ROOT: self._root_width()}

    def num_children(self, node: int) -> int:
        """How many candidates a node of the frontier takes."""
        return self._widths[node]

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the root to this one."""
        found: list[int] = []
        while node != ROOT:
            found.append(node)
            node = self.parents[node]
        return tuple(reversed(found))

    def extend(self, candidates: Sequence[Candidates], ended: Sequence[bool]) -> None:
        """Gives the frontier's nodes their children; those of a node with `ended` get none themselves."""
        self.levels.append(self.frontier)
        grown: list[int] = []
        for node, own, last in zip(self.frontier, candidates, ended, strict=True):
            made = [self._add(node, rank, token, value) for rank, (token, value) in self._kept(node, own)]
            grown += [] if last else [child for child in made if self.tokens[child] not in self._stop_tokens]
        self._choose_frontier(grown)

    def kept(self) -> list[int]:
        """The nodes of the draft, parents before children."""
        if self._sampled or self._tree.shape or len(self.tokens) <= self._max_nodes:
            return list(range(len(self.tokens)))
        likeliest = sorted(range(len(self.tokens)), key=lambda node: -self._values[node])
        return sorted(likeliest[: self._max_nodes])

    def run_parents(self) -> tuple[int, ...]:
        """The parents of all nodes that the drafter has run or runs next, as places among these."""
        run = [node for level in (*self.levels[1:], self.frontier) for node in level]
        places = {node: place for place, node in enumerate(run)}
        return tuple(places.get(self.parents[node], ROOT) for node in run)

    def _add(self, parent: int, rank: int, token: int, probability: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self._values.append(probability * (self._values[parent] if parent != ROOT else 1.0))
        self._ranks.append((*(self._ranks[parent] if parent != ROOT else ()), rank))
        return len(self.tokens) - 1

    def _kept(self, node: int, candidates: Candidates) -> list[tuple[int, tuple[int, float]]]:
        """The candidates that become children, with their ranks."""
        ranked = list(enumerate(candidates[: self._widths[node]]))
        if not self._tree.shape:
            return ranked
        before = self._ranks[node] if node != ROOT else ()
        return [(rank, one) for rank, one in ranked if (*before, rank) in self._tree.shape]

    def _choose_frontier(self, grown: Sequence[int]) -> None:
        level = len(self.levels)
        self.frontier = ()
        if level >= self._tree.depth:
            return
        if self._tree.shape:
            self._widths |= {node: self._shape_width(self._ranks[node]) for node in grown}
            self.frontier = tuple(node for node in grown if self._widths[node])
            return
        likeliest = sorted(grown, key=lambda node: -self._values[node])[: self._tree.branching]
        if not self._sampled:
            self._widths |= dict.fromkeys(likeliest, self._tree.branching)
            self.frontier = tuple(sorted(likeliest))
            return
        room = self._share(level)
        for node in likeliest:
            self._widths[node] = min(room, self._tree.branching)
            room -= self._widths[node]
        self.frontier = tuple(sorted(node for node in likeliest if self._widths[node]))

    def _root_width(self) -> int:
        if self._tree.shape:
            return self._shape_width(())
        return min(self._tree.branching, self._share(0)) if self._sampled else self._tree.branching

    def _shape_width(self, ranks: tuple[int, ...]) -> int:
        """How many candidates a node needs, so that all its children in the fixed tree are among them."""
        own = [node[-1] for node in self._tree.shape if node[:-1] == ranks]
        return max(own, default=-1) + 1

    def _share(self, level: int) -> int:
        """The nodes of a level of a sampled tree."""
        n, depth = self._max_nodes, self._tree.depth
        return n * (level + 1) // depth - n * level // depth


def pick(values: Sequence[int], kept: Sequence[int]) -> tuple[int, ...]:
    """The values at these places."""
    return tuple([values[place] for place in kept])


def kept_parents(parents: Sequence[int], kept: Sequence[int]) -> tuple[int, ...]:
    """The parents of the kept nodes, as places among these."""
    places = {node: place for place, node in enumerate(kept)}
    return tuple(places.get(parents[node], ROOT) for node in kept)


def likeliest_shape(
    rank_probabilities: Sequence[Sequence[float]], nodes: int, depth: int
) -> tuple[tuple[int, ...], ...]:
    """The fixed tree of `nodes` nodes with the longest expected path (Sequoia, Chen et al., 2024, section 4.1).

    rank_probabilities: by depth (the last stands for all deeper ones), the probability that the target's token has each
    rank among the drafter's candidates, given that it follows a right path. A node's value is the product on its path,
    so the likeliest nodes are the best tree, and a parent is never less likely than its children. A rank that was
    measured as likelier than the one before it counts as equally likely: a tree has no node without its elder siblings.
    """
    chosen: list[tuple[float, tuple[int, ...]]] = []
    open_nodes: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    for level in range(depth):
        row = list(accumulate(rank_probabilities[min(level, len(rank_probabilities) - 1)], min))
        found = [(value * p, (*ranks, rank)) for value, ranks in open_nodes for rank, p in enumerate(row) if p > 0]
        open_nodes = sorted(found, key=lambda one: (-one[0], one[1]))[:nodes]
        chosen += open_nodes
    best = sorted(chosen, key=lambda one: (-one[0], len(one[1]), one[1]))[:nodes]
    return tuple(sorted((ranks for _, ranks in best), key=lambda ranks: (len(ranks), ranks)))


def check_shape(shape: Sequence[Sequence[int]], where: str) -> None:
    """Raises ValueError for a node that stands there twice, or before its parent or an elder sibling."""
    known: set[tuple[int, ...]] = {()}
    for ranks in map(tuple, shape):
        elder = (*ranks[:-1], ranks[-1] - 1) if ranks and ranks[-1] > 0 else ()
        if not ranks or ranks in known or not {ranks[:-1], elder} <= known or min(ranks) < 0:
            raise ValueError(
                f"{where}: the node {list(ranks)} must come once, after its parent and its siblings of lower rank"
            )
        known.add(ranks)
