"""Masks against their definition, entry by entry."""

import itertools

import pytest
import torch

from serving.engines.torch.model_runner import AttentionMasks


def _allowed(mask):
    assert set(mask.unique().tolist()) <= {0.0, float("-inf")}
    return mask == 0


@pytest.mark.parametrize("window", [None, 1, 5])
def test_causal_masks_in_any_order_of_sizes(window):
    masks = AttentionMasks(torch.float32, torch.device("cpu"))
    for past, rows in itertools.product((0, 3, 200, 1), (2, 9, 40, 3)):
        allowed = _allowed(masks.causal(past, rows, window))
        assert allowed.shape == (rows, past + rows)
        for i, j in itertools.product(range(rows), range(past + rows)):
            assert allowed[i, j] == (j <= past + i and (window is None or j > past + i - window))


@pytest.mark.parametrize("window", [None, 1, 50])
def test_masks_of_many_tokens_are_those_of_few(window):
    masks = AttentionMasks(torch.float32, torch.device("cpu"))
    for past, rows in itertools.product((0, 3, 200, 1), (64, 65, 150)):
        rest = [masks.causal(past + at, 1, window)[0] for at in range(rows)]
        whole = masks.causal(past, rows, window)
        assert whole.shape == (rows, past + rows)
        for at, row in enumerate(rest):
            assert torch.equal(whole[at, : past + at + 1], row)
            assert whole[at, past + at + 1 :].isneginf().all()


def test_what_is_kept_is_not_the_longest_chunk_behind_the_longest_cache():
    masks = AttentionMasks(torch.float32, torch.device("cpu"))
    for past, rows in ((16, 400), (6000, 5), (16, 400)):
        masks.causal(past, rows, None)
    assert sum(strip.numel() for strip in masks._strips.values()) <= 64 * (2 * 6000 + 64)


@pytest.mark.parametrize("window", [None, 3])
def test_tree_nodes_attend_to_the_cache_their_ancestors_and_themselves(window):
    masks = AttentionMasks(torch.float32, torch.device("cpu"))
    parents, depths = (-1, 0, 0, 1, -1), [0, 1, 1, 2, 0]
    ancestors = [{0}, {0, 1}, {0, 2}, {0, 1, 3}, {4}]
    allowed = _allowed(masks.tree(4, parents, depths, window))
    for i in range(5):
        position = 4 + depths[i]
        seen = {j for j in range(4) if window is None or j > position - window}
        seen |= {4 + j for j in ancestors[i] if window is None or 4 + depths[j] > position - window}
        assert set(allowed[i].nonzero()[:, 0].tolist()) == seen
