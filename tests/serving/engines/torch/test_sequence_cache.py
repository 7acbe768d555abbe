"""Sequence caches: growth, roll-back, accepted tree nodes, and holes."""

import pytest
import torch

from serving.engines.torch.model import decompose
from serving.engines.torch.sequence_cache import KVCacheManager
from serving.hardware.executor import CacheFullError, CacheHoleError


@pytest.fixture(scope="module")
def model(causal):
    return decompose(causal("llama"))


def _fill(slot, length):
    """Token t is stored as the number t in every layer's keys, and as -t in its values."""
    slot.reserve(length)
    numbers = torch.arange(slot.length, length, dtype=torch.float32)[:, None].expand(1, 2, -1, 8)
    keys, values = slot.write_targets(slot.length, length)
    for layer in range(4):
        keys[layer].copy_(numbers)
        values[layer].copy_(-numbers)
    slot.length = length


def _stored(slot):
    keys, values = slot.read_views(0, slot.length)
    found = {tuple(keys[layer][0, 0, :, 0].int().tolist()) for layer in range(4)}
    assert found == {tuple((-values[layer][0, 1, :, -1]).int().tolist()) for layer in range(4)}
    assert len(found) == 1
    return found.pop()


def test_a_growing_cache_keeps_its_tokens(model):
    slot = KVCacheManager(model).open("a", 0, 4, 0)
    for length in (3, 64, 65, 300):
        _fill(slot, length)
        assert _stored(slot) == tuple(range(length))
    assert slot.capacity >= 300
    assert (
        slot.nbytes == 2 * 4 * slot.capacity * 2 * 8 * 4
    )  # keys and values, layers, tokens, KV heads, head size, fp32


def test_a_span_holds_only_its_own_layers(model):
    cache = KVCacheManager(model)
    for part, last in ((1, 3), (None, 4)):
        slot = cache.open("a", part, last, 0)
        slot.reserve(1)
        assert len(slot.read_views(0, 1)[0]) == last - (part or 0)
    assert cache.nbytes == 6 * 2 * 16 * 2 * 8 * 4


def test_opening_a_cache_rolls_back_and_never_forward(model):
    cache = KVCacheManager(model)
    _fill(cache.open("a", 0, 4, 0), 10)
    assert cache.open("a", 0, 4, 7).length == 7
    with pytest.raises(CacheHoleError, match="session 'a' begins at token 8, but only 7 tokens are cached"):
        cache.open("a", 0, 4, 8)


@pytest.mark.parametrize("keep", [(), (0,), (1, 2, 4), (4,), (0, 1, 2, 3, 4)])
def test_accepted_tree_nodes_move_to_where_drafts_began(model, keep):
    cache = KVCacheManager(model)
    slot = cache.open("a", 0, 4, 0)
    _fill(slot, 12)
    slot.draft_start = 7
    slot = cache.open("a", 0, 4, 7 + len(keep), keep)
    assert _stored(slot) == (*range(7), *(7 + i for i in keep))


def test_keeping_an_uncached_tree_node_is_an_error(model):
    cache = KVCacheManager(model)
    slot = cache.open("a", 0, 4, 0)
    _fill(slot, 9)
    slot.draft_start = 7
    with pytest.raises(CacheHoleError, match="draft 2 is kept, but only 2 drafts are in the cache"):
        cache.open("a", 0, 4, 8, (2,))


@pytest.mark.parametrize("keep", [(), (0,)])
def test_keeping_drafts_behind_tokens_that_are_not_cached_is_an_error(model, keep):
    """As after a forward that failed."""
    cache = KVCacheManager(model)
    slot = cache.open("a", 0, 4, 0)
    _fill(slot, 5)
    slot.draft_start = 8
    with pytest.raises(CacheHoleError, match="drafts begin at token 8, but only 5 tokens are cached"):
        cache.open("a", 0, 4, 5, keep)


def _apart(cache, sessions="ab", each=16):
    """Slots whose blocks alternate: each grows by one block in turn, in a pool that is otherwise full."""
    slots = {s: cache.open(s, 0, 4, 0) for s in sessions}
    for length in range(each, 4 * each + 1, each):
        for slot in slots.values():
            _fill(slot, length)
    assert all(slot.num_runs > 1 for slot in slots.values())
    return slots


@pytest.mark.parametrize("keep", [(), (0,), (3, 20), (1, 2, 25)])
def test_scattered_blocks_are_read_written_and_compacted(model, keep):
    slots = _apart(KVCacheManager(model, 16, budget_tokens=128))
    for slot in slots.values():
        assert _stored(slot) == tuple(range(64))
        slot.draft_start = 30
        slot.keep_drafts(keep)
        assert _stored(slot) == (*range(30), *(30 + i for i in keep))
        slot.truncate(20, "a")
        assert (slot.num_blocks, _stored(slot)) == (2, tuple(range(20)))


def test_a_roll_back_frees_blocks_and_another_session_takes_them(model):
    cache = KVCacheManager(model, 16, budget_tokens=64)
    _fill(cache.open("a", 0, 4, 0), 60)
    with pytest.raises(CacheFullError, match="1 more blocks of KV cache are needed, and 4 of 4 are taken"):
        cache.open("b", 0, 4, 0).reserve(1)
    cache.open("a", 0, 4, 33)
    assert cache.num_blocks == 3
    _fill(cache.open("b", 0, 4, 0), 16)
    cache.drop("a", 0)
    assert (cache.num_blocks, _stored(cache.open("b", 0, 4, 16))) == (1, tuple(range(16)))


def test_spans_share_the_budget(model):
    cache = KVCacheManager(model, 16, budget_tokens=40)  # two whole blocks
    cache.open("a", 0, 2, 0).reserve(16)
    cache.open("a", 2, 4, 0).reserve(16)
    with pytest.raises(CacheFullError):
        cache.open("b", 0, 2, 0).reserve(1)


def test_a_cache_without_an_adjacent_block_moves_to_a_contiguous_run(model):
    cache = KVCacheManager(model)
    slots = [cache.open(s, 0, 4, 0) for s in "abcdefgh"]
    for length in range(10, 400, 10):  # 8 sessions of 25 blocks: the pool grows
        for slot in slots:
            _fill(slot, length)
    assert [_stored(slot) for slot in slots] == [tuple(range(390))] * 8
    assert sum(slot.num_runs == 1 for slot in slots) >= 6
    assert cache.num_blocks == 8 * 25
    assert cache.reserved_nbytes <= 2 * cache.nbytes


def test_the_cache_of_a_lone_session_is_contiguous(model):
    slot = KVCacheManager(model).open("a", 0, 4, 0)
    for length in range(1, 4000, 37):
        slot.reserve(length)
        assert slot.num_runs == 1
