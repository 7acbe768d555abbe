"""A node's ledger and its chip's pool count the same blocks, whatever happened: the one never asks what the other has
not.
"""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.kv_accounting import KVAccounting, admit
from serving.core.queued_request import QueuedRequest
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.kv_pool import KVPool, gpu_extent_blocks
from serving.engines.torch.model import decompose
from serving.engines.torch.sequence_cache import SequenceCache
from serving.messages import ForwardWork, Request, SequenceSlice, Span

WHOLE = Span(0, 1, embedding=True, lm_head=True)
CAPACITY = 100
"""Not a whole number of blocks."""
ASKS = st.lists(
    st.tuples(
        st.sampled_from("abcde"),
        st.integers(1, 30),
        st.integers(0, 5),
        st.integers(0, 9),
        st.sampled_from(("greedy", "tree", "superseded", "released")),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda asked: asked[0],
)
"""Session, new rows, drafts among them, tokens rolled back before, what becomes of it."""


class Chip:
    """A worker's book beside the engine that it stands for."""

    def __init__(self, model, block_tokens):
        self.ledger = KVAccounting(CAPACITY, True, block_tokens)
        self.engine = TorchEngine(model, block_tokens=block_tokens, budget_tokens=CAPACITY)
        self.kept = {}
        self.loose = set()
        """Sessions without a counted last verdict: the accounting may hold more than the chip."""

    def rows(self, session, n, check, back, kind):
        keep = self.kept.pop(session, None)
        length = int(self.ledger.valid_len(SequenceSlice(session, 0, 1, (), kept_tree_nodes=keep), WHOLE))
        start = length if keep is not None else max(0, length - back)
        parents = tuple(range(-1, check - 1)) if kind == "tree" else None
        tokens = tuple(3 if (start + i) % 4 == 0 else 0 for i in range(n + check))
        return SequenceSlice(
            session,
            start,
            n + check,
            tokens,
            check,
            "greedy",
            parents=parents,
            kept_tree_nodes=keep,
        )

    def batch(self, asks):
        kinds = {asked[0]: asked[-1] for asked in asks}
        for session in [s for s, kind in kinds.items() if kind == "released"]:
            self.drop(self.ledger.evict_session(session))
        slices = [self.rows(*asked) for asked in asks if asked[-1] != "released"]
        items = [QueuedRequest(Request(0, rows, (), 0, (), "device"), rows, WHOLE, 0.0, 0) for rows in slices]
        picked = [
            (i, i.slice.num_tokens)
            for i in items
            if self.ledger.round_up_to_blocks(i.slice.start + i.slice.num_tokens) <= CAPACITY
        ]
        gone = []
        picked = admit(picked, self.ledger, {i.slice.session: [i] for i, _ in picked}, gone)
        self.drop(gone)
        if picked:
            self.run([item.slice for item, _ in picked], kinds)

    def run(self, batch, kinds):
        for rows in batch:
            self.ledger.start_forward(rows, WHOLE)
        assert self.ledger.used_tokens <= CAPACITY
        results, _ = self.engine.execute(ForwardWork(WHOLE, tuple(batch), ("last",) * len(batch)))
        for rows, result in zip(batch, results, strict=True):
            verdict = result.verdict
            self.loose.discard(rows.session)
            if kinds[rows.session] == "superseded":
                self.loose.add(rows.session)
                continue
            self.kept.update({rows.session: verdict.kept_tree_nodes} if verdict.kept_tree_nodes is not None else {})
            self.ledger.finish_forward(
                rows, WHOLE, rows.num_drafts - verdict.accepted if verdict.kept_tree_nodes is None else 0
            )

    def drop(self, keys):
        for session, first in keys:
            self.engine.drop(session, first)
            self.kept.pop(session, None)
            self.loose.discard(session)

    def agrees(self):
        size, slots = self.ledger.block_tokens, self.engine.cache._caches
        for key in self.ledger.cached_lens:
            held, taken = self.ledger.allocated_tokens(key), slots[key].num_blocks * size if key in slots else 0
            assert held >= taken if key[0] in self.loose else held == taken
        assert self.ledger.used_tokens == sum(map(self.ledger.allocated_tokens, self.ledger.cached_lens))
        assert self.engine.cache.num_blocks * size <= self.ledger.used_tokens <= CAPACITY


@pytest.fixture(scope="module")
def model(causal):
    """A model that always writes token 0, so that a test decides which drafts are accepted."""
    model = decompose(copy.deepcopy(causal("llama", num_hidden_layers=1)))
    model.lm_head.weight.zero_()
    return model


@pytest.mark.parametrize("block_tokens", [1, 4, 16])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(history=st.lists(ASKS, max_size=25))
def test_kv_accounting_and_kv_pool_count_the_same_blocks(model, block_tokens, history):
    chip = Chip(model, block_tokens)
    for asks in history:
        chip.batch(asks)
        chip.agrees()


@pytest.mark.parametrize(
    ("free_nbytes", "block_nbytes", "blocks"),
    [
        (64 * 2**30, 2**23, 2048),  # Llama-2-7B in 16 bits: a quarter of what is free
        (64 * 2**30, 2**18, 4096),  # a small model: 65,536 tokens
        (2**30, 2**23, 64),  # little is left: as on a CPU
    ],
)
def test_an_extent_on_a_gpu_holds_the_sessions_of_a_batch(free_nbytes: int, block_nbytes: int, blocks: int) -> None:
    assert gpu_extent_blocks(free_nbytes, block_nbytes, block_tokens=16) == blocks


def test_sessions_that_grow_together_lie_in_one_extent(causal) -> None:
    """Beside one of 1,000 tokens. In extents of 2,048 tokens no pass of the eight could be replayed."""
    model = decompose(causal("llama"))
    found = {}
    for blocks in (128, gpu_extent_blocks(64 * 2**30, 2**23, block_tokens=16)):
        pool = KVPool(model, 1)
        pool._min_extent_blocks = blocks
        SequenceCache(model, 0, 1, pool).reserve(1000)
        for _ in range(2):
            caches = [SequenceCache(model, 0, 1, pool) for _ in range(8)]
            found[blocks] = [_extents_of(caches, length) for length in range(64, 112)]
            for cache in caches:
                cache.truncate(0, "")
    assert found[128].count(1) == 0
    assert found[2048].count(1) == 48


def _extents_of(caches: list[SequenceCache], length: int) -> int:
    """Extents in which `caches` of `length` tokens lie; 0 if one is scattered."""
    for cache in caches:
        cache.reserve(length)
        cache.length = length
    slots = [cache.extent_slot() for cache in caches]
    return 0 if None in slots else len({id(slot[0]) for slot in slots if slot})
