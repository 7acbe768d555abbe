"""Trees grow where the drafter's path probability is highest, in a fixed shape, or with a settled number of draws."""

import itertools
import random
from collections.abc import Sequence

import pytest

from serving.core.draft_tree import depths
from serving.core.tree_growth import ROOT, TreeGrowth, check_shape, kept_parents, likeliest_shape, pick
from serving.messages import DraftStopRule, TreeRule

VOCABULARY = 6


def probabilities(path: Sequence[int]) -> list[float]:
    """The drafter's next-token probabilities after a path of tokens."""
    draw = random.Random(repr(tuple(path)))
    weights = [draw.random() ** 4 for _ in range(VOCABULARY)]
    return [weight / sum(weights) for weight in weights]


def candidates(path: Sequence[int], count: int) -> list[tuple[int, float]]:
    found = sorted(enumerate(probabilities(path)), key=lambda one: -one[1])
    return found[:count]


def grown(rule: DraftStopRule, sampled: bool = False, stop_tokens: tuple[int, ...] = ()) -> TreeGrowth:
    growth = TreeGrowth(rule, stop_tokens, sampled)
    while growth.frontier:
        paths = [pick(growth.tokens, growth.path(node)) for node in growth.frontier]
        counts = [growth.num_children(node) for node in growth.frontier]
        growth.extend([candidates(*one) for one in zip(paths, counts, strict=True)], [False] * len(paths))
    return growth


def paths(growth: TreeGrowth) -> set[tuple[int, ...]]:
    """The kept nodes, each by the tokens on its path."""
    return {pick(growth.tokens, growth.path(node)) for node in growth.kept()}


def value(path: Sequence[int]) -> float:
    found = 1.0
    for length, token in enumerate(path):
        found *= probabilities(path[:length])[token]
    return found


def test_the_kept_nodes_are_the_likeliest_of_all_where_nothing_is_cut_on_the_way():
    growth = grown(DraftStopRule(9, tree=TreeRule(3, VOCABULARY**2)))
    every = [path for n in (1, 2, 3) for path in itertools.product(range(VOCABULARY), repeat=n)]
    assert paths(growth) == set(sorted(every, key=value, reverse=True)[:9])


@pytest.mark.parametrize(("nodes", "depth", "branching"), [(16, 5, 4), (5, 5, 1), (7, 2, 3), (1, 1, 1)])
def test_a_tree_has_its_nodes_levels_and_children(nodes: int, depth: int, branching: int):
    growth = grown(DraftStopRule(nodes, tree=TreeRule(depth, branching)))
    kept = growth.kept()
    parents = kept_parents(growth.parents, kept)
    assert len(kept) == min(nodes, len(growth.tokens))
    assert max(depths(parents)) + 1 <= depth == len(growth.levels)
    assert all(len(level) <= branching for level in growth.levels)
    assert max(parents.count(parent) for parent in parents) <= branching
    assert all(parent < node for node, parent in enumerate(parents))


def test_a_chain_is_the_tree_with_one_child_a_node():
    growth = grown(DraftStopRule(4, tree=TreeRule(4, 1)))
    greedy: list[int] = []
    for _ in range(4):
        greedy.append(candidates(greedy, 1)[0][0])
    assert growth.tokens == greedy
    assert growth.parents == [-1, 0, 1, 2]


def test_a_sampled_tree_keeps_all_that_was_drawn_within_its_nodes():
    growth = grown(DraftStopRule(11, tree=TreeRule(4, 3)), sampled=True)
    assert growth.kept() == list(range(len(growth.tokens)))
    assert len(growth.tokens) <= 11
    assert [depths(growth.parents).count(level) for level in range(4)] == [2, 3, 3, 3]


def test_the_number_of_a_sampled_nodes_children_does_not_depend_on_them():
    growth = TreeGrowth(DraftStopRule(8, tree=TreeRule(2, 3)), sampled=True)
    assert growth.num_children(ROOT) == 3
    growth.extend([[(0, 0.9), (1, 0.05), (2, 0.01)]], [False])
    wanted = [growth.num_children(node) for node in growth.frontier]
    assert sum(wanted) == 4
    growth.extend([[(token, 1e-9) for token in range(count)] for count in wanted], [False] * len(wanted))
    assert len(growth.kept()) == 7


def test_a_node_with_a_stop_token_has_no_children():
    stop = candidates((), 1)[0][0]
    growth = grown(DraftStopRule(9, tree=TreeRule(3, 2)), stop_tokens=(stop,))
    assert stop in growth.tokens
    assert all(growth.tokens[parent] != stop for parent in growth.parents if parent != ROOT)


def test_a_node_whose_branch_has_ended_has_no_grandchildren():
    growth = TreeGrowth(DraftStopRule(9, tree=TreeRule(3, 2)))
    growth.extend([[(1, 0.5), (2, 0.4)]], [False])
    growth.extend([[(3, 0.9), (4, 0.1)], [(5, 0.9), (4, 0.1)]], [True, False])
    assert {growth.parents[node] for node in growth.frontier} == {1}


def test_a_fixed_shape_takes_the_named_ranks_alone():
    shape = ((0,), (1,), (0, 0), (0, 0, 0), (1, 0))
    growth = grown(DraftStopRule(5, tree=TreeRule(3, 4, shape)))
    firsts = [token for token, _ in candidates((), 2)]
    assert growth.tokens[:2] == firsts
    assert kept_parents(growth.parents, growth.kept()) == (-1, -1, 0, 1, 2)
    assert growth.tokens[4] == candidates(pick(growth.tokens, (0, 2)), 1)[0][0]


def test_places_among_the_nodes_that_ran_are_parents_of_the_next_forward():
    growth = TreeGrowth(DraftStopRule(20, tree=TreeRule(3, 2)))
    growth.extend([[(1, 0.5), (2, 0.4)]], [False])
    assert growth.run_parents() == (-1, -1)
    growth.extend([[(3, 0.1), (4, 0.05)], [(5, 0.9), (6, 0.8)]], [False, False])
    assert growth.frontier == (4, 5)
    assert growth.run_parents() == (-1, -1, 1, 1)


def test_the_likeliest_shape_has_the_longest_expected_path():
    rows = [[0.6, 0.2, 0.1], [0.5, 0.3, 0.1]]

    def expected(shape: Sequence[tuple[int, ...]]) -> float:
        found = 0.0
        for ranks in shape:
            chance = 1.0
            for level, rank in enumerate(ranks):
                chance *= rows[min(level, 1)][rank]
            found += chance
        return found

    every = [ranks for n in (1, 2, 3) for ranks in itertools.product(range(3), repeat=n)]
    trees = [shape for shape in itertools.combinations(every, 4) if all(r[:-1] in (*shape, ()) for r in shape)]
    best = likeliest_shape(rows, 4, 3)
    assert expected(best) == pytest.approx(max(map(expected, trees)))
    check_shape(best, "shape")


def test_a_rank_that_was_measured_likelier_than_its_elder_does_not_stand_without_it():
    best = likeliest_shape([[0.5, 0.1, 0.2]], 3, 1)
    assert best == ((0,), (1,), (2,))
    check_shape(likeliest_shape([[0.5, 0.1, 0.2]], 2, 2), "shape")


@pytest.mark.parametrize("shape", [((0, 0),), ((0,), (0,)), ((1,),), ((),), ((0,), (0, 1))])
def test_a_shape_without_a_nodes_parent_or_elder_sibling_is_refused(shape: tuple[tuple[int, ...], ...]):
    with pytest.raises(ValueError, match=r"policy\.draft\.shape: the node"):
        check_shape(shape, "policy.draft.shape")
