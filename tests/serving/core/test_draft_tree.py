"""Drafts as trees: depths, joined shapes, and the longest path that the target would write."""

from hypothesis import given
from hypothesis import strategies as st

from serving.core.draft_tree import accept_greedily, depths, first_path, joined
from serving.messages import Verdict


def test_depth_is_the_number_of_ancestors():
    assert depths((-1, 0, 0, 2, -1)) == [0, 1, 1, 2, 0]


def test_two_chains_join_to_a_chain():
    assert joined(None, 3, None, 2) is None


def test_a_tree_that_follows_a_chain_grows_from_its_last_token():
    assert joined(None, 2, (-1, -1, 0), 3) == (-1, 0, 1, 1, 2)


def test_a_chain_that_follows_a_tree_grows_from_its_last_token():
    assert joined((-1, -1), 2, None, 2) == (-1, -1, 1, 2)


def test_a_tree_without_a_draft_before_it_keeps_its_parents():
    assert joined(None, 0, (-1, -1, 0), 3) == (-1, -1, 0)


@given(
    st.lists(st.integers(0, 2), max_size=6),
    st.lists(st.integers(0, 2), min_size=7, max_size=7),
)
def test_a_chain_and_its_explicit_parents_are_accepted_alike(drafts: list[int], choices: list[int]):
    chain = accept_greedily(drafts, None, lambda path: choices[len(path)])
    tree = accept_greedily(drafts, tuple(range(-1, len(drafts) - 1)), lambda path: choices[len(path)])
    assert (chain.accepted, chain.next_token) == (tree.accepted, tree.next_token)
    assert chain.kept_tree_nodes is None
    assert tree.kept_tree_nodes == tuple(range(chain.accepted))


def test_of_two_children_the_one_that_the_target_writes_is_accepted():
    texts = {(): 7, (1,): 8, (1, 2): 9}
    verdict = accept_greedily((6, 7, 8, 7), (-1, -1, 1, -1), lambda path: texts[tuple(path)])
    assert verdict == Verdict(2, 9, (1, 2))


def test_the_first_path_goes_through_each_nodes_first_child():
    assert first_path((-1, 0, 0, 1), 4) == (0, 1, 3)
    assert first_path((-1, -1, 1), 3) == (0,)
    assert first_path(None, 3) == (0, 1, 2)
