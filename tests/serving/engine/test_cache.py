"""Slots: growth, roll-back, survivors of a tree, and holes."""

import pytest
import torch

from serving.engine.cache import Cache, CacheHoleError
from serving.engine.model import take_apart


@pytest.fixture(scope="module")
def model(causal):
    return take_apart(causal("llama"))


def _fill(slot, length):
    """Token t is stored as the number t in every layer's keys, and as -t in its values."""
    slot.reserve(length)
    numbers = torch.arange(slot.length, length, dtype=torch.float32)[:, None]
    for keys, values in zip(*slot.views(slot.length, length), strict=True):
        keys[0, :] = numbers
        values[0, :] = -numbers
    slot.length = length


def _stored(slot):
    keys, values = slot.views(0, slot.length)
    found = {tuple(layer[0, 0, :, 0].int().tolist()) for layer in keys}
    assert found == {tuple((-layer[0, 1, :, -1]).int().tolist()) for layer in values}
    assert len(found) == 1
    return found.pop()


def test_a_slot_keeps_its_tokens_when_it_grows(model):
    slot = Cache(model).open("a", 0, 4, 0)
    for length in (3, 64, 65, 300):
        _fill(slot, length)
        assert _stored(slot) == tuple(range(length))
    assert slot.capacity >= 300
    assert (
        slot.nbytes == 2 * 4 * slot.capacity * 2 * 8 * 4
    )  # keys and values, layers, tokens, KV heads, head size, fp32


def test_a_span_holds_only_its_own_layers(model):
    cache = Cache(model)
    assert len(cache.open("a", 1, 3, 0).views(0, 1)[0]) == 2
    assert len(cache.open("a", None, 4, 0).views(0, 1)[0]) == 4
    assert cache.nbytes == 6 * 2 * 64 * 2 * 8 * 4


def test_opening_rolls_back_and_never_forward(model):
    cache = Cache(model)
    _fill(cache.open("a", 0, 4, 0), 10)
    assert cache.open("a", 0, 4, 7).length == 7
    with pytest.raises(CacheHoleError, match="session 'a' begins at token 8, but only 7 tokens are cached"):
        cache.open("a", 0, 4, 8)


@pytest.mark.parametrize("keep", [(), (0,), (1, 2, 4), (4,), (0, 1, 2, 3, 4)])
def test_survivors_move_to_where_drafts_began(model, keep):
    cache = Cache(model)
    slot = cache.open("a", 0, 4, 0)
    _fill(slot, 12)
    slot.drafts_at = 7
    slot = cache.open("a", 0, 4, 7 + len(keep), keep)
    assert _stored(slot) == (*range(7), *(7 + i for i in keep))


def test_a_draft_that_was_never_cached_cannot_survive(model):
    cache = Cache(model)
    slot = cache.open("a", 0, 4, 0)
    _fill(slot, 9)
    slot.drafts_at = 7
    with pytest.raises(CacheHoleError, match="draft 2 is kept, but only 2 drafts are in the cache"):
        cache.open("a", 0, 4, 8, (2,))
